"""log_softmax over few classes (small_log_softmax.h), with its backward: ATen's bits, in a handful of calls for all rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradc import executor, native
from tests.executor.agree import capture, check_agree

aten = torch.ops.aten
SPECIAL = (float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1e-42, 3e38, -200.0)


def log_softmax(values: Tensor) -> Tensor:
    return torch.log_softmax(values, -1)


def backward(grad: Tensor, result: Tensor) -> Tensor:
    return aten._log_softmax_backward_data(grad, result, -1, grad.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 7, 8, 9, 10, 13, 15, 16, 17, 33])
def test_rows_of_all_lengths(columns: int, dtype: torch.dtype) -> None:
    for rows in (1, 2, 7, 16, 33, 300):
        for scale in (0.01, 1, 30):
            values, grad = (scale * torch.randn(2, rows, columns)).to(dtype)
            check_agree(log_softmax, [values])
            check_agree(backward, [grad, log_softmax(values)])


def test_numbers_that_are_seldom_met() -> None:
    for columns in (2, 4, 7, 10):
        values, grad = torch.randn(2, 64, columns)
        for value in SPECIAL:
            values[torch.rand(values.shape) < 0.05] = value
            grad[torch.rand(grad.shape) < 0.05] = value
        check_agree(log_softmax, [values])
        check_agree(backward, [grad, log_softmax(torch.randn(64, columns))])
        check_agree(backward, [torch.randn(64, columns), log_softmax(values)])
    for value in SPECIAL:
        check_agree(log_softmax, [torch.full((3, 4), value)])


def test_other_dimensions_and_strides() -> None:
    values = torch.randn(6, 5, 4)
    check_agree(lambda values: torch.log_softmax(values, 0), [values])
    check_agree(lambda values: torch.log_softmax(values, 1), [values])
    check_agree(lambda values: torch.log_softmax(values, 2), [values])
    check_agree(log_softmax, [values.transpose(0, 1)])
    check_agree(log_softmax, [torch.randn(4)])
    check_agree(log_softmax, [torch.randn(6, 9)[:, :4]])
    check_agree(log_softmax, [torch.randn(0, 4)])
    check_agree(log_softmax, [torch.randn(20000, 4)])
    check_agree(lambda values: aten._log_softmax(values, 1, False), [torch.randn(6, 4)])


def test_a_result_that_takes_the_memory_of_what_it_is_made_of() -> None:
    def loss(values: Tensor, grad: Tensor) -> Tensor:
        return backward(grad * 2, log_softmax(values + 1))

    check_agree(loss, [torch.randn(64, 4), torch.randn(64, 4)])


@pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))
@pytest.mark.parametrize("columns", [2, 4, 7])
def test_these_calls_make_no_tensors(columns: int) -> None:
    """Of ATen's, on machines with AVX2 or AVX-512: elsewhere it uses other functions."""
    values, grad = torch.randn(2, 64, columns)
    is_known = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    for function, inputs in ((log_softmax, [values]), (backward, [grad, log_softmax(values)])):
        limit = native.extension.Limit(executor.lower(capture(function, inputs)), inputs)
        assert limit.num_direct == (1 if is_known else 0)
