"""Fake tensors that stand in for what a walked graph saved and what its live nodes return, at other sizes than theirs.

stand_ins: (Walk, numbers) -> fake tensors in place of the walked ones
returned: (Walk, Boundary, numbers) -> what the live node is to return, and what that must look like
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradc import native
from gradc.capture.recording import Boundary, Expected
from gradc.errors import UnsupportedError
from gradc.symbolic.terms import Numbers, Values
from gradc.torch_private.autograd import storage_key

if TYPE_CHECKING:
    from gradc._C import Walk


@dataclasses.dataclass(frozen=True)
class _Saved:
    """A walked tensor, with its layout at the new sizes. Offsets count from the tensor walked first on the same memory.

    ``seen_offset`` is the offset at the sizes at hand, whose sign is known.
    """

    tensor: torch.Tensor
    storage: int
    shape: Numbers
    stride: Numbers
    offset: Any
    seen_offset: int

    def span(self) -> Any:
        """How much memory holds it and what lies between it and the first."""
        span = -self.offset if self.seen_offset < 0 else self.offset
        for size, stride in zip(self.shape, self.stride, strict=True):
            span = span + size * stride
        return span + 1


def stand_ins(walk: Walk, numbers: Numbers) -> list[torch.Tensor]:
    """Fake tensors in place of the walked ones, sharing memory as they do. Numbers in tensors stay what they are.

    They come before any recorded call, so who shares is read off the live tensors: ir.aliases then knows it of the fakes.
    """
    shared: dict[int, list[_Saved]] = {}
    saved = _saved(walk, numbers)
    for one in saved:
        shared.setdefault(one.storage, []).append(one)
    memory: dict[int, torch.Tensor] = {}
    is_number = native.extension.is_wrapped_number
    return [one.tensor if is_number(one.tensor) else _stand_in(one, shared[one.storage], memory) for one in saved]


def _saved(walk: Walk, numbers: Numbers) -> list[_Saved]:
    saved: list[_Saved] = []
    met: set[int] = set()
    seen = walk.numbers
    for tensor, start in zip(walk.tensors, walk.tensor_numbers, strict=True):
        dim, storage = tensor.dim(), storage_key(tensor)
        is_first, place = storage not in met, start + 2 * dim
        met.add(storage)
        offset, seen_offset = (0, 0) if is_first else (numbers[place], seen[place])
        saved.append(_Saved(tensor, storage, numbers[start : start + dim], numbers[start + dim : place], offset, seen_offset))
    return saved


def _stand_in(one: _Saved, sharing: Sequence[_Saved], memory: dict[int, torch.Tensor]) -> torch.Tensor:
    """A fake like ``one``. ``sharing``: all on its memory; ``memory``: the fake memory of those that share some."""
    tensor, shape, stride = one.tensor, list(one.shape), list(one.stride)
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedError("lazy conjugation or negation")
    if len(sharing) == 1:
        return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
    if one.storage not in memory:
        memory[one.storage] = torch.empty(sum(other.span() for other in sharing), dtype=tensor.dtype, device=tensor.device)
    if tensor.dtype != memory[one.storage].dtype:
        raise UnsupportedError("saved tensors that share memory under two dtypes")
    lowest = min(sharing, key=lambda other: other.seen_offset)
    return memory[one.storage].as_strided(shape, stride, one.offset - lowest.offset)


def returned(walk: Walk, boundary: Boundary, numbers: Numbers) -> tuple[list[torch.Tensor | None], tuple[Expected, ...]]:
    """Fakes for what a boundary returns, and what they must look like. Sizes are what the receiving nodes want."""
    outputs: list[torch.Tensor | None] = []
    expected: list[Expected] = []
    for seen, start in zip(boundary.expected, walk.target_numbers(boundary.node), strict=True):
        if seen.dtype is None:
            outputs.append(None)
            expected.append(dataclasses.replace(seen, numbers=()))
            continue
        dim = len(seen.numbers) // 2
        if start < 0 or len(seen.numbers) != 2 * dim or not all(isinstance(n, int) for n in seen.numbers):
            raise UnsupportedError("result of a live node whose sizes are not known")
        shape = list(numbers[start : start + dim])
        stride = _same_order(seen.numbers[:dim], seen.numbers[dim:], shape)
        outputs.append(torch.empty_strided(shape, stride, dtype=seen.dtype))
        expected.append(dataclasses.replace(seen, numbers=(*shape, *stride)))
    return outputs, tuple(expected)


def _same_order(shape: Values, stride: Values, new_shape: Numbers) -> list[Any]:
    """Strides for the new sizes: dimensions in the same order in memory, expanded ones still expanded.

    A stride stays where it need not be a product of sizes: a dimension of size 1 steps nowhere, and that of a slice, whose rows
    of fixed size lie apart, is the stride of what it is a slice of. If it is another after all, the node's run tells.
    """
    new: list[Any] = [0] * len(shape)
    extent, new_extent = 1, 1
    for dim in sorted(range(len(shape)), key=lambda d: (stride[d], -d)):
        if stride[dim] == 0:
            continue
        if stride[dim] == extent:
            new[dim] = new_extent
        elif shape[dim] == 1:
            new[dim] = stride[dim]
            continue
        elif stride[dim] > extent and isinstance(new_extent, int) and new_extent == extent:
            new[dim] = extent = new_extent = stride[dim]
        else:
            raise UnsupportedError("result of a live node that is not dense")
        extent, new_extent = extent * shape[dim], new_extent * new_shape[dim]
    return new
