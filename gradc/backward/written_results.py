"""What eager counts in the gradients that formulas of torch's C++ return: on fake tensors these take another way.

    versions_in_eager: node -> what it leaves in the version counters of its gradients, on real tensors
    count_as_eager:    (gradients, versions) -> None        sets them

A formula that writes into the gradient it returns makes a new one where something is "like a subclass", as a fake tensor is.
One that is a single kernel on real tensors is taken apart on fake ones, and counts what it writes. And zeros are counted once,
where a formula makes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gradc.tape.tape import Node
from gradc.torch_private.autograd import set_version

Versions = Iterable[int | None]  # of the gradients, one after the other; None: as it is on fake tensors

_MEAN = 1  # torch's number for reduction="mean"


def versions_in_eager(node: Any) -> Versions:
    """Of a node that has what it saved."""
    versions = _VERSIONS.get(node.name())
    return () if versions is None else versions(node)


def count_as_eager(grads: Iterable[torch.Tensor | None], versions: Versions) -> None:
    for grad, version in zip(grads, versions, strict=False):
        if grad is not None and version is not None:
            set_version(grad, version)


def _all(version: int) -> Callable[[Node], Versions]:
    return lambda node: itertools.repeat(version)


def _each(*versions: int | None) -> Callable[[Node], Versions]:
    return lambda node: versions


def _repeated(node: Node) -> Versions:
    """Zeros, if it was repeated no times."""
    return (1 if 0 in tuple(node._saved_repeats) else None,)


def _weighted(node: Any) -> int:
    """How often a formula of a loss multiplies and divides what it has made: by the gradient, the weights, the number."""
    return 1 + (node._saved_weight is not None) + (node._saved_reduction == _MEAN)


def _cross_entropy(node: Node) -> Versions:
    return None, 1 + _weighted(node)


def _cross_entropy_with_logits(node: Any) -> Versions:
    has_pos_weight = node._saved_pos_weight is not None
    return (3 if has_pos_weight else 1) + _weighted(node), (2 if has_pos_weight else 0) + _weighted(node) - 1


def _reflected(node: Any) -> Versions:
    """Column by column."""
    number = int(node._saved_tau.shape[-1])
    return number + 1, number


# Written into zeros by a function of torch's that counts it once more.
_SELECTING = (
    "CummaxBackward0",
    "CumminBackward0",
    "KthvalueBackward0",
    "MaxBackward0",
    "MedianBackward1",
    "MinBackward0",
    "ModeBackward0",
    "NanmedianBackward1",
    "SortBackward0",
    "SortBackward1",
    "TopkBackward0",
)
_ONCE = (
    "AminmaxBackward0",
    "GatherBackward0",
    "IndexBackward0",
    "IndexSelectBackward0",
    "MaxBackward1",
    "MedianBackward0",
    "MinBackward1",
    "NanmedianBackward0",
    "NormalBackward1",
    "NormalBackward2",
    "NormalBackward3",
    "TakeBackward0",
)
_VERSIONS: dict[str, Callable[[Node], Versions]] = {
    **dict.fromkeys(_SELECTING, _all(2)),
    **dict.fromkeys(_ONCE, _all(1)),
    "BinaryCrossEntropyBackward0": _cross_entropy,
    "BinaryCrossEntropyWithLogitsBackward0": _cross_entropy_with_logits,
    "IndexFillBackward1": _each(None, 0),
    "LinalgHouseholderProductBackward0": _reflected,
    "MaskedFillBackward1": _each(None, 0),
    "MaxPool2DWithIndicesBackwardBackward0": _each(None, 1),
    "NextafterBackward0": _each(None, 1),
    "RepeatBackward0": _repeated,
    "SplitWithSizesBackward0": _all(0),
    "TraceBackward0": _all(2),
}
