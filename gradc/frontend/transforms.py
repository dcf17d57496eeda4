"""torch.func's transforms in one of Dynamo's graphs: entered and left by plain calls, which are made while it is recorded.

    call_of_transform: (tape, function, args) -> the function to call instead, or None where it is none of a transform's
    forbids_hooks:     graph -> whether eager raises where the user has set saved-tensors hooks around it
    advice_of_vmap:    graph -> context manager around its recording, which collects what vmap warns of
    said_at_each_call: (what was collected, call) -> the call that warns first

A transform of reverse mode has autograd nodes of its own, on tensors of its own, and runs them itself before it ends: it sends
down to the level of the region just the calls that it sends in eager, and these lie on the tape.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from gradc.ambient import autocast_state
from gradc.backward.ended_transforms import as_once_ended
from gradc.backward.inner_gradients import nodes_between
from gradc.errors import UnsupportedError
from gradc.tape.record import TapeRecorder
from gradc.torch_private.quiet import recorded_warnings, warn_again
from gradc.torch_private.transforms import ADVICE_OF_VMAP, enters_vmap, is_gradient_of_transform, is_switch_of_hooks


def call_of_transform(tape: TapeRecorder, function: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """See the module's docstring.

    Raises:
        UnsupportedError: where the transform's pass through the engine may be another than eager's.
    """
    if is_switch_of_hooks(function):  # which are forbidden there; those that record get no tensor of the transform's
        return _nothing
    if not is_gradient_of_transform(function):
        return None
    if autocast_state().enabled:
        raise UnsupportedError("function transform", "a gradient under autocast")
    if any(tensor.device.type != "cpu" for tensor in _tensors(args)):
        raise UnsupportedError("function transform", "a gradient not on the CPU")
    return functools.partial(_differentiate, tape, function)


def _differentiate(tape: TapeRecorder, function: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    with as_once_ended(tape, nodes_between(_tensors(outputs), _tensors(inputs))):
        return function(outputs, inputs, *args, **kwargs)


def forbids_hooks(graph: torch.fx.GraphModule) -> bool:
    return any(is_switch_of_hooks(node.target) for node in graph.graph.nodes)


@contextlib.contextmanager
def advice_of_vmap(graph: torch.fx.GraphModule) -> Iterator[list[warnings.WarningMessage]]:
    """An op that vmap has no rule for runs once for each element: eager warns at each call, a recording while it is made."""
    advice: list[warnings.WarningMessage] = []
    if not any(enters_vmap(node.target) for node in graph.graph.nodes):
        yield advice
        return
    others: list[warnings.WarningMessage] = []
    try:
        with recorded_warnings() as warned:
            yield advice
    finally:
        for warning in warned:
            (advice if str(warning.message).startswith(ADVICE_OF_VMAP) else others).append(warning)
        warn_again(others)


def said_at_each_call(advice: Sequence[warnings.WarningMessage], call: Callable[..., Any]) -> Callable[..., Any]:
    def warn_and_call(*inputs: Any) -> Any:
        warn_again(advice)
        return call(*inputs)

    return torch.compiler.disable(warn_and_call) if advice else call


def _tensors(arguments: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def _nothing(*_: Any) -> None:
    """Allows and forbids no saved-tensors hooks."""
