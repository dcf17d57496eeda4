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

from gradc.ulps import LARGEST, steps_between

_EDGES = (0, 1, 2, 4, 8, 16, 64, 256, 1024)  # the upper ends of the bars
_WIDTH = 32
_BEYOND = LARGEST


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
    are_nan = a.isnan() & b.isnan()
    is_counted = (a == b) | (a.isfinite() & b.isfinite())
    return torch.where(is_counted, steps_between(a, b), _BEYOND).masked_fill(are_nan, 0)


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
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
