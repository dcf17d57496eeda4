"""How far apart two tensors of floating-point numbers are, counted in representable numbers (ulps), as a histogram.

    distances: (tensor, tensor) -> the ulps between each two elements
    histogram: (tensor, tensor) -> Histogram

An ulp is the step to the next number that the dtype has, so 1 is the smallest difference there can be, at any magnitude.
Complex numbers count as pairs. A pair of which one is a NaN, or is infinite, is beyond any number of ulps.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EDGES = (0, 1, 2, 4, 8, 16, 64, 256, 1024)  # the upper ends of the bars
_WIDTH = 32
_BEYOND = torch.iinfo(torch.int64).max


@dataclasses.dataclass(frozen=True)
class Histogram:
    """``bars``: pairs of a range of ulps, in words, and how many elements lie in it. ``str`` draws them."""

    bars: tuple[tuple[str, int], ...]
    largest: int

    def __str__(self) -> str:
        most = max((count for _, count in self.bars), default=1)
        widths = [max(len(str(bar[column])) for bar in self.bars) for column in (0, 1)]
        return "\n".join(
            f"{label:>{widths[0]}} ulp  {count:>{widths[1]}}  {'#' * -(-_WIDTH * count // most)}" for label, count in self.bars
        )

    def to_dict(self) -> dict[str, int]:
        return dict(self.bars)


def is_measured(a: object, b: object) -> bool:
    """True for two tensors of the same dtype and shape whose elements have ulps between them."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.layout is not torch.strided or a.is_nested:
        return False
    is_alike = (a.dtype, a.layout, a.device) == (b.dtype, b.layout, b.device) and not b.is_nested and a.shape == b.shape
    return is_alike and not a.is_meta and (a.is_floating_point() or a.is_complex())


def distances(a: Tensor, b: Tensor) -> Tensor:
    """int64, flat. Both have the same dtype and shape."""
    a, b = (_as_real(tensor) for tensor in (a, b))
    x, y = _steps(a), _steps(b)
    is_across = (x < 0) != (y < 0)  # the zero lies between, where the subtraction may overflow
    apart = torch.where(is_across, _sum(x.abs(), y.abs()), (x - y).abs())
    is_same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(is_same | (a.isfinite() & b.isfinite()), apart, _BEYOND).masked_fill(a.isnan() & b.isnan(), 0)


def histogram(a: Tensor, b: Tensor) -> Histogram:
    found = distances(a, b)
    bars, lower = [], 0
    for upper in (*_EDGES, _BEYOND):
        if count := int(((found >= lower) & (found <= upper)).sum()):
            bars.append((_label(lower, upper), count))
        lower = upper + 1
    return Histogram(tuple(bars), int(found.max()) if found.numel() else 0)


def _label(lower: int, upper: int) -> str:
    if upper == _BEYOND:
        return f"> {lower - 1}"
    return str(upper) if lower == upper else f"{lower}-{upper}"


def _as_real(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    tensor = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    return tensor


def _steps(tensor: Tensor) -> Tensor:
    """Numbers in whose order, and at whose distances, the floating-point numbers stand; both zeros are 0."""
    bits = tensor.contiguous().view(_INTEGERS[tensor.dtype.itemsize])
    lowest = torch.iinfo(bits.dtype).min
    wide = bits.to(torch.int64)
    return torch.where(wide < 0, lowest - wide, wide)


def _sum(a: Tensor, b: Tensor) -> Tensor:
    """Of what is not negative, and no more than int64 holds."""
    return torch.where(a > _BEYOND - b, _BEYOND, a + b)
