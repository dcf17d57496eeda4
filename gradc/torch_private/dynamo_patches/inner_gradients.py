"""``torch.autograd.grad`` inside compiled code: Dynamo can put the call into its graph, which it does for gradc alone."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo import config
from torch._dynamo.guards import install_guard
from torch._dynamo.variables import torch as torch_variables
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._guards import Guard

from gradc.torch_private.autograd import is_heard
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.subclasses import with_class_of
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

Tensors = Sequence[torch.Tensor]
_SIGNATURE = inspect.signature(torch.autograd.grad)
_SWITCHES = ("retain_graph", "create_graph", "is_grads_batched", "materialize_grads")


def trace_inner_gradients(
    reason_for_eager: Callable[..., str], counted: Callable[[Tensors], contextlib.AbstractContextManager[object]]
) -> Patch:
    """Let Dynamo put ``torch.autograd.grad`` into gradc's graphs, unless ``reason_for_eager`` tells why eager has to call it.

    That gets fake tensors: the outputs and inputs of the call, and those that come from outside of the graph; and whether zeros
    are made of missing gradients (``makes_zeros``), and a graph (``creates_graph``); and whether the function that is compiled
    calls ``backward`` itself (``is_in_step``). Dynamo's own conditions hold too: it looks at the first two arguments only where
    they are given by position, so they are. ``counted`` gets fake outputs: the context around what Dynamo has the engine do.
    """

    def call(original: Method, self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            given = _SIGNATURE.bind(*args, **kwargs).arguments
        except TypeError:
            return original(self, tx, *args, **kwargs)
        outputs, inputs = given.pop("outputs"), given.pop("inputs")
        switches = {name: given[name].as_python_constant() for name in given if given[name].is_python_constant()}
        facts = {"is_in_step": "backward" in tx.output.root_tx.f_code.co_names, **_of_switches(switches)}
        reason = (
            _unusual_switches(given, switches)
            or reason_for_eager(_fakes(outputs), _fakes(inputs), _arguments(tx), **facts)
            or _hooked(_several(inputs))
        )
        if reason:
            explanation = "gradc leaves this call to torch's engine, between what comes before and what comes after."
            end_graph("autograd.grad", explanation, reason)
        with config.patch(trace_autograd_ops=True), counted(_fakes(outputs)):
            grads = original(self, tx, outputs, inputs, **given)
        return with_class_of(tx, [*_several(outputs), *_several(inputs)], grads)

    return Patch(
        "trace_inner_gradients",
        "Dynamo ends its graph at torch.autograd.grad, and each order of derivatives would be a pass through the engine.",
        (around(TorchInGraphFunctionVariable._get_handlers(), torch.autograd.grad, call),),
    )


def _unusual_switches(given: Collection[str], switches: Mapping[str, Any]) -> str:
    """Why a call with these arguments is no case for a graph. ``switches`` are those that are constants."""
    if any(name in given and name not in switches for name in _SWITCHES):
        return "argument that is no constant"
    if switches.get("is_grads_batched"):
        return "is_grads_batched"
    frees = switches.get("create_graph") and switches.get("retain_graph", True) is False
    return "create_graph without retain_graph" if frees else ""


def _of_switches(switches: Mapping[str, Any]) -> dict[str, bool]:
    return {"makes_zeros": bool(switches.get("materialize_grads")), "creates_graph": bool(switches.get("create_graph"))}


def _hooked(inputs: Sequence[Any]) -> str:
    """Why eager has to call what hooks hear: they run in the middle of the function, and may write what it reads, or writes.

    Whether there are any is guarded.
    """
    arguments = [each.as_proxy().node.meta.get("grapharg") for each in inputs if isinstance(each, TensorVariable)]
    are_heard = [_guard_hooks(argument) for argument in arguments if argument is not None]
    return "hook on what the gradient is for" if any(are_heard) else ""


def _guard_hooks(argument: Any) -> bool:
    """True if something runs when the gradient of this input of the graph is there."""
    was_heard = is_heard(argument.example)

    def add(builder: Any, guard: Guard) -> None:
        words = [f"{'a' if was_heard else 'no'} hook on {guard.name}"]
        manager = builder.get_guard_manager(guard)
        manager.add_lambda_guard(lambda tensor: is_heard(tensor) == was_heard, words, guard.user_stack)

    install_guard(argument.source.make_guard(add))
    return was_heard


def _fakes(argument: Any) -> list[torch.Tensor]:
    return [fake for fake, _ in torch_variables._collect_tensors_with_sources(argument)]


def _several(argument: Any) -> list[Any]:
    """The variables in an argument that is one tensor, a sequence of them or a dictionary."""
    argument = argument.realize()
    if argument.is_tensor():
        return [argument]
    items = argument.items.values() if isinstance(argument, ConstDictVariable) else getattr(argument, "items", ())
    return [each.realize() for each in items]


def _arguments(tx: Any) -> list[torch.Tensor]:
    """The tensors that come from outside of the graph."""
    variables = tx.output.input_source_to_var.values()
    values = [each.as_proxy().node.meta.get("example_value") for each in variables if isinstance(each, TensorVariable)]
    return [value for value in values if isinstance(value, torch.Tensor)]
