"""The rule that tells what rounds otherwise from what is wrong."""

import pytest
import torch
from torch import Tensor

from gradc.parity.differences import Difference, Kind, Stage, Value, difference, limit

NAN = float("nan")


def found(eager: object, other: object, is_grown: bool = False) -> Difference | None:
    return difference("x", Value.of(eager, Stage.GRADIENT), Value.of(other, Stage.GRADIENT), is_grown=is_grown)


def kind(eager: object, other: object, is_grown: bool = False) -> Kind | None:
    difference = found(eager, other, is_grown)
    return None if difference is None else difference.kind


def wide(dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(300, 40, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_sums_in_another_order_round_otherwise(dtype: torch.dtype) -> None:
    x = wide(dtype)
    eager, other = x.sum(0), sum(x[torch.randperm(300)], torch.zeros(40, dtype=dtype))
    assert kind(eager, other) is Kind.ROUNDED and found(eager, other).ulps.largest > 0
    assert kind(eager, eager) is None


def test_what_was_computed_in_bfloat16_is_wrong_in_float32() -> None:
    a, b = wide(torch.float32), wide(torch.float32).t()
    difference = found(a @ b, (a.bfloat16() @ b.bfloat16()).float())
    assert difference.kind is Kind.WRONG and difference.ulps is None
    assert difference.why.endswith("of the largest element, where rounding explains 1.2e-04")


@pytest.mark.parametrize("dtype, expected", [(torch.float64, 2.0**-42), (torch.float32, 2.0**-13), (torch.bfloat16, 1 / 16)])
def test_the_limit(dtype: torch.dtype, expected: float) -> None:
    assert limit(dtype) == expected
    eager = torch.tensor([-1.0, 0.5], dtype=dtype)
    for share, wanted in ((0.75, Kind.ROUNDED), (1.25, Kind.WRONG)):
        assert kind(eager, eager + torch.tensor([0, share * expected], dtype=dtype)) is wanted


WRONG = [
    (None, torch.zeros(2), "zeros instead of None"),
    (None, torch.ones(2), "a tensor instead of None"),
    (torch.zeros(2), None, "None instead of a tensor"),
    (torch.ones(2), torch.ones(2).double(), "dtype is torch.float64, in eager torch.float32"),
    (torch.ones(2), torch.ones(1, 2), "shape is (1, 2), in eager (2,)"),
    (torch.ones(2), torch.ones(2, requires_grad=True), "requires_grad is True, in eager False"),
    (torch.ones(4), torch.tensor([0.0, 1, 0, 1]), "zero on one side only in 2 of 4 elements"),
    (torch.ones(2), torch.tensor([NAN, 1]), "infinite or NaN on one side only in 1 of 2 elements"),
    (torch.tensor([1, 2]), torch.tensor([1, 3]), "other values"),
    (torch.tensor([True]), torch.tensor([False]), "other values"),
    (3, 4, "4 instead of 3"),
]


@pytest.mark.parametrize("eager, other, why", WRONG)
def test_wrong(eager: object, other: object, why: str) -> None:
    difference = found(eager, other)
    assert (difference.kind, difference.why) == (Kind.WRONG, why)


def test_strides() -> None:
    x = wide(torch.float32)
    difference = found(x, x.t().contiguous().t())
    assert (difference.kind, difference.why) == (Kind.STRIDES, "strides (1, 300), in eager (40, 1)")
    assert kind(torch.ones(1, 3), torch.ones(3, 1).t()) is None  # of a dimension of size 1 strides say nothing


def test_what_grew_from_a_rounding_is_rounded_but_another_dtype_is_wrong() -> None:
    assert kind(torch.ones(2), torch.ones(2) * 2, is_grown=True) is Kind.ROUNDED
    assert kind(torch.ones(2), torch.ones(2).double(), is_grown=True) is Kind.WRONG
    assert kind(torch.ones(2), None, is_grown=True) is Kind.WRONG


def test_a_sum_that_cancels_is_nothing_but_rounding() -> None:
    noise, other = torch.tensor([1e-8, 0.0]), torch.tensor([0.0, -2e-8])
    eager, compiled = Value.of(noise, Stage.GRADIENT), Value.of(other, Stage.GRADIENT)
    assert difference("x", eager, compiled).kind is Kind.WRONG
    assert difference("x", eager, compiled, scale=0.1).kind is Kind.ROUNDED
    assert difference("x", eager, compiled, scale=0.01).kind is Kind.WRONG


def test_values_that_are_not_strided() -> None:
    dense = torch.eye(3)
    nearly = torch.nextafter(dense, torch.full_like(dense, 9)) * dense
    assert kind(dense.to_sparse(), nearly.to_sparse()) is Kind.ROUNDED
    assert kind(dense.to_sparse(), (2 * dense).to_sparse()) is Kind.WRONG


def test_a_dictionary_for_json() -> None:
    entry = found(torch.ones(2), torch.tensor([1.0, 1 + 2**-23])).to_dict()
    assert (entry["kind"], entry["ulps"], entry["largest"]) == ("rounds otherwise", {"0": 1, "1": 1}, 2**-23)
