"""``x[:, 0]`` of a tensor whose sizes are symbols, as eager indexes: a slice of all that there is makes no view, and no node.

    with_ends: (tensor, index) -> an index of the same elements, whose whole slices end at the tensor's sizes

torch leaves out a slice that takes a whole dimension. Of a symbol it cannot tell, since where the slice ends is the largest
of all numbers: it would slice, and the slice's backward copy the gradient into zeros. That a size is not beyond itself it can
tell.
"""

from __future__ import annotations

from typing import Any

import torch


def with_ends(tensor: Any, index: Any) -> Any:
    """See the module's docstring. As it is, where there is nothing to change."""
    items = index if isinstance(index, tuple) else (index,)
    if not isinstance(tensor, torch.Tensor) or not any(isinstance(item, slice) for item in items):
        return index
    widths = [_width(item) for item in items]
    num_specified, dimension, found = sum(width or 0 for width in widths), 0, []
    if None in widths or num_specified > tensor.dim() or all(isinstance(size, int) for size in tensor.shape):
        return index
    for item, width in zip(items, widths):
        is_whole = _is_whole(item) and isinstance(tensor.shape[dimension], torch.SymInt)
        found.append(slice(None, tensor.shape[dimension]) if is_whole else item)
        dimension += tensor.dim() - num_specified if item is ... else width or 0
    return tuple(found)


def _is_whole(item: Any) -> bool:
    if not isinstance(item, slice) or item.stop is not None:
        return False
    return all(each is None or (type(each) is int and each == usual) for each, usual in ((item.start, 0), (item.step, 1)))


def _width(item: Any) -> int | None:
    """How many dimensions an item of an index takes; None where that is not known."""
    if item is None or item is ... or isinstance(item, bool):
        return 0
    if isinstance(item, torch.Tensor):
        return item.dim() if item.dtype in (torch.bool, torch.uint8) else 1
    return 1 if isinstance(item, (int, slice, torch.SymInt)) else None
