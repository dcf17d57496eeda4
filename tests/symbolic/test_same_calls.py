"""Two traces make the same calls only if these get the same numbers, bit for bit, and the same constants."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gradc.ir.values import Instruction, Ref, Slot
from gradc.symbolic.same_calls import Trace, is_same

SCALARS = [(0.0, -0.0), (1.0, math.nan), (1, 1.0), (2.0, 2.5), (torch.float32, torch.float64)]


def call(argument: Any, constant: torch.Tensor | None = None) -> Trace:
    """A trace of one call with one argument."""
    constants = {} if constant is None else {0: constant}
    instruction = Instruction(torch.ops.aten.mul.Scalar, (Ref(0), argument), {}, (1,))
    return Trace((0,), (Slot("a"), Slot("b")), constants, (instruction,), (), (1,))


@pytest.mark.parametrize("one, other", SCALARS)
def test_a_number_that_differs_in_a_bit_is_another_call(one: Any, other: Any) -> None:
    for a in (one, other):
        for b in (one, other):
            assert is_same(call(a), (), (), call(b)) is (a is b)


def test_a_constant_that_differs_in_the_sign_of_a_zero_is_another_call() -> None:
    one = torch.tensor([0.0, math.nan])
    assert is_same(call(2, one), (), (), call(2, one.clone()))
    assert not is_same(call(2, one), (), (), call(2, -one))
