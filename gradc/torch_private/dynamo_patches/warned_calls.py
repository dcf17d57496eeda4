"""Calls of torch that warn or raise are made by eager, at each call; a graph would do so while it is traced."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.variables import builder
from torch._dynamo.variables.functions import UserFunctionVariable

from gradc.torch_private.dynamo_names import ARGUMENTS_DO_NOT_FIT
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.quiet import recorded_warnings, warn_again
from gradc.torch_private.weaver import around

# Their functions for fake tensors refuse what the kernels take: float32 on a CPU, as a mixture of experts has it.
_STRICTER = {
    getattr(home, name) for home, name in ((torch, "_grouped_mm"), (torch.nn.functional, "grouped_mm")) if hasattr(home, name)
}


def warn_at_each_call() -> Patch:
    """End the graph at a call that warns each time, or raises. What torch says once in a process it says when it is traced."""
    return Patch(
        "warn_at_each_call",
        "Dynamo gives warnings of operators while it traces, twice, and the graph never; errors pass by the user's except.",
        (around(builder, "get_fake_value", _fake_value), around(UserFunctionVariable, "bind_args", _binding)),
    )


def _fake_value(original: Method, node: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    if node.target is torch.stft and torch.is_warn_always_enabled() and _has_no_window(*node.args, **node.kwargs):
        _end_graph("call that warns", "torch's function for fake tensors says nothing of a window that is missing.")
    run = functools.partial(original, node, tx, *args, **kwargs)
    try:
        result, warned = _recorded(run)
    except (TorchDynamoException, RuntimeError) as error:
        if node.target in _STRICTER:
            _end_graph("call that raises", error)
        raise
    except Exception as error:
        _end_graph("call that raises", error)
    is_in_place = str(getattr(node.target, "__name__", node.target)).endswith("_")
    if warned and (is_in_place or _recorded(run)[1]):
        _end_graph("call that warns", warned[0].message)
    warn_again(warned)
    return result


def _has_no_window(*args: Any, **kwargs: Any) -> bool:
    return (args[4] if len(args) > 4 else kwargs.get("window")) is None


def _binding(original: Method, self: Any, parent: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(self, parent, *args, **kwargs)
    except ARGUMENTS_DO_NOT_FIT as error:
        _end_graph("call that raises", error)


def _end_graph(name: str, what: object) -> NoReturn:
    end_graph(name, "gradc leaves this call to eager.", str(what).split("\n")[0])


def _recorded(run: Callable[[], Any]) -> tuple[Any, list[warnings.WarningMessage]]:
    with recorded_warnings() as warned:
        return run(), warned
