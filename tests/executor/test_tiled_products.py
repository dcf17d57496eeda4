"""Products of float32 matrices in gradc's own tiles (tiled_product.h): BLAS's bits, whatever the shape, layout and numbers."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from gradc import executor
from gradc.bits import same_bits
from tests.executor.agree import capture, check_agree

ROWS = (1, 2, 5, 6, 7, 12, 13, 32, 100)
INNER = (1, 2, 7, 16, 64, 192, 193, 195, 250, 256, 383, 384, 400, 600)
COLUMNS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 33, 47, 64, 65, 96, 128)
SHAPES = list(itertools.product(ROWS, INNER, COLUMNS))


def factors(rows: int, inner: int, columns: int, layout: str) -> tuple[Tensor, Tensor]:
    x = torch.randn(inner, rows).t() if layout[0] == "T" else torch.randn(rows, inner)
    y = torch.randn(columns, inner).t() if layout[1] == "T" else torch.randn(inner, columns)
    return x, y


def check_products(x: Tensor, y: Tensor) -> None:
    row, whole = torch.randn(y.shape[1]), torch.randn(x.shape[0], y.shape[1])
    check_agree(torch.mm, [x, y])
    check_agree(torch.addmm, [row, x, y])
    check_agree(torch.addmm, [whole, x, y])


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("part", range(8))
def test_all_shapes(part: int, layout: str, threads: int) -> None:
    for shape in SHAPES[part::24] if threads == 1 else SHAPES[part + 8 :: 96]:
        check_products(*factors(*shape, layout))


def _zeros(factor: Tensor) -> None:
    factor[torch.rand(factor.shape) < 0.4] = 0.0
    factor[torch.rand(factor.shape) < 0.3] = -0.0


def _too_small(factor: Tensor) -> None:
    factor *= torch.where(torch.rand(factor.shape) < 0.5, 1e-23, 1e-40)


def _no_numbers(factor: Tensor) -> None:
    for value in (float("inf"), -float("inf"), float("nan")):
        factor[torch.rand(factor.shape) < 0.05] = value


@pytest.mark.parametrize("spoil", [_zeros, _too_small, _no_numbers], ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_numbers_that_are_seldom_met(spoil, layout: str) -> None:
    for shape in [(8, 2, 65), (32, 2, 16), (100, 7, 128), (16, 64, 64), (8, 256, 32), (32, 256, 2), (64, 64, 4), (33, 600, 5)]:
        x, y = factors(*shape, layout)
        spoil(x), spoil(y)
        check_products(x, y)
        check_products(-x.abs(), y.abs())


def test_products_that_are_too_small_are_zero_and_not_minus_zero() -> None:
    """BLAS adds its chain of additions to a result that it has made zero."""
    x, y = torch.full((16, 1), -1e-30), torch.full((1, 16), 1e-30)
    check_agree(torch.mm, [x, y])
    assert same_bits(executor.lower(capture(torch.mm, [x, y]))([x, y])[0], x @ y)


def test_a_column_by_a_row(threads: int) -> None:
    """Here it adds nothing, not even 0."""
    for rows, columns in ((4, 4), (256, 32), (7, 33), (64, 5), (1, 40), (40, 1)):
        x, y = torch.randn(rows, 1), torch.randn(1, columns)
        x[0], y[0, 0] = -0.0, 0.0
        check_products(x, y)
        check_products(torch.full((1, 1), -0.0).expand(rows, 1), y)
        check_products(x.t().contiguous().t(), y.t().contiguous().t())


def test_narrow_results_depend_on_where_they_lie() -> None:
    """Of few columns, BLAS makes some elements in another way where the result does not begin as a tensor's memory does."""
    for layout, rows, inner, columns in itertools.product(("NN", "TN", "NT"), (8, 32, 100, 992), (8, 32, 257, 992), (2, 4, 8)):
        check_products(*factors(rows, inner, columns, layout))


def test_gaps_between_rows(threads: int) -> None:
    wide, tall = torch.randn(40, 90), torch.randn(90, 70)
    check_products(wide[:, :64], tall[:64, :33])
    check_products(wide[::2, 5:69], tall[7:71, 1::2])
    check_products(tall.t()[:48, :64], wide.t()[:64, 3:20])
    check_products(wide[:1].expand(9, 90), tall)


def test_large_products(threads: int) -> None:
    for shape in [(256, 128, 384), (256, 384, 128), (300, 513, 200)]:
        for layout in ("NN", "NT", "TN"):
            check_agree(torch.mm, [*factors(*shape, layout)])


def test_another_number_of_threads_than_before() -> None:
    x, y = factors(64, 64, 64, "NT")
    plan = executor.lower(capture(torch.mm, [x, y]))
    before = torch.get_num_threads()
    try:
        for threads in (before, 1, 2, 1, before):
            torch.set_num_threads(threads)
            for _ in range(3):
                assert same_bits(plan([x.clone(), y.clone()])[0], x @ y)
    finally:
        torch.set_num_threads(before)


def test_less_precision_where_the_user_allows_it() -> None:
    x, y = factors(64, 64, 64, "NN")
    plan = executor.lower(capture(torch.mm, [x, y]))
    plan([x.clone(), y.clone()])
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("medium", "highest", "high"):
            torch.set_float32_matmul_precision(precision)
            assert same_bits(plan([x.clone(), y.clone()])[0], x @ y)
    finally:
        torch.set_float32_matmul_precision(before)
