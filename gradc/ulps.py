"""How far apart floating-point numbers are, counted in representable numbers (ulps).

steps_between: (tensor, tensor) -> the steps from each element to the other
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = torch.iinfo(torch.int64).max
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def steps_between(a: Tensor, b: Tensor) -> Tensor:
    """int64, of their shape; ``LARGEST`` stands for more, too. Both are real, of one dtype and shape.

    Infinities and NaNs count as the numbers that their bits would be.
    """
    x, y = _steps(a), _steps(b)
    is_across = (x < 0) != (y < 0)  # the zero lies between, where the subtraction may overflow
    return torch.where(is_across, _sum(x.abs(), y.abs()), (x - y).abs())


def _steps(tensor: Tensor) -> Tensor:
    """Numbers in whose order, and at whose distances, the floating-point numbers stand; both zeros are 0."""
    bits = tensor.contiguous().view(_INTEGERS[tensor.dtype.itemsize])
    lowest = torch.iinfo(bits.dtype).min
    wide = bits.to(torch.int64)
    return torch.where(wide < 0, lowest - wide, wide)


def _sum(a: Tensor, b: Tensor) -> Tensor:
    """Of what is not negative, and no more than int64 holds."""
    return torch.where(a > LARGEST - b, LARGEST, a + b)
