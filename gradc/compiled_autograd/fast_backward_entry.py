"""Backward passes that come to compiled segments begin at once, without what torch's Python does before its engine begins.

    AT_ONCE:       the patch of torch.autograd.backward
    run_segments:  arguments of Tensor.backward -> True if the pass is done; False: nothing has happened, it goes torch's way
    straight_loss: () -> what joins a region's forward with the backward behind it

torch's Python takes 20 us to make the gradient of a loss, and to ask for all that could be unusual: as long as the backward of
a small model. Here one call in C++ asks for it, and only of a graph that has a segment; torch's own Python runs all others.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from gradc import native
from gradc.compiled_autograd.entry import is_way_in_torchs
from gradc.compiled_autograd.settings import is_left_to_torch
from gradc.torch_private.autograd import is_torchs_backward
from gradc.torch_private.dynamo import is_compiled_autograd_enabled
from gradc.torch_private.patches import Patch, Replace


def run_segments(tensor: Any, gradient: Any, retain_graph: Any, create_graph: Any, inputs: Any) -> bool:
    """``tensor.backward(...)`` inside compiled code. See the module's docstring."""
    return _is_beginning_torchs() and _run()(tensor, gradient, retain_graph, create_graph, None, inputs)


def straight_loss() -> Any:
    """See the module's docstring (gradc._C.StraightLoss); None without the extension."""
    return native.extension.StraightLoss(torch.Tensor.backward, _may_go_straight) if native.is_built() else None


def _may_go_straight() -> bool:
    return _is_beginning_torchs() and _is_left_to_torch(consists_of_segments=True)


def _is_left_to_torch(consists_of_segments: bool) -> bool:
    """True where a pass goes through torch's own Python and engine, which nobody captures, counts or has replaced."""
    return is_left_to_torch(consists_of_segments) and not is_compiled_autograd_enabled() and is_way_in_torchs()


# ---- torch.autograd.backward

_beginnings: list[Any] = []  # what stands for torch's own function


def _is_beginning_torchs() -> bool:
    """False if somebody has put a function of his own there."""
    return torch.autograd.backward in _beginnings


@functools.cache
def _run() -> Any:
    """What runs a pass, or returns False."""
    return native.extension.backward_at_once(_is_left_to_torch)


def _begun_at_once(original: Any) -> Any:
    if not native.is_built() or not is_torchs_backward(original):  # somebody's own, which wants to be called
        return functools.wraps(original)(lambda *args, **kwargs: original(*args, **kwargs))
    run = _run()

    @functools.wraps(original)
    def backward(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> None:
        if not run(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs):
            original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)

    _beginnings.append(backward)
    return backward


AT_ONCE = Patch(
    "begin_passes_at_once",
    "torch's Python takes longer to begin a backward pass than a small compiled segment takes to run.",
    (Replace(torch.autograd, "backward", _begun_at_once),),
)
