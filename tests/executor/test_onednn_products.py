"""Products of bfloat16 matrices by oneDNN's kept primitives (onednn_product.cpp): ATen's bits, or ATen's own call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradc import native
from tests.executor.agree import check_agree

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))

aten = torch.ops.aten
SIZES = [(1, 1, 1), (3, 5, 7), (20, 64, 16), (64, 32, 100), (1, 256, 64), (64, 256, 1), (200, 1, 33)]


def matrix(*sizes: int, turned: bool = False) -> Tensor:
    if turned:
        return matrix(*sizes[:-2], sizes[-1], sizes[-2]).transpose(-1, -2)
    return torch.randn(sizes).to(torch.bfloat16)


@pytest.mark.parametrize("turns", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("sizes", SIZES)
def test_matrices(threads: int, sizes: tuple[int, int, int], turns: tuple[bool, bool]) -> None:
    rows, inner, columns = sizes
    x, y = matrix(rows, inner, turned=turns[0]), matrix(inner, columns, turned=turns[1])
    check_agree(aten.mm, [x, y])
    check_agree(aten.addmm, [matrix(columns), x, y])
    check_agree(aten.addmm, [matrix(rows, columns), x, y])


@pytest.mark.parametrize("turns", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("sizes", SIZES)
def test_batches(threads: int, sizes: tuple[int, int, int], turns: tuple[bool, bool]) -> None:
    rows, inner, columns = sizes
    x, y = matrix(6, rows, inner, turned=turns[0]), matrix(6, inner, columns, turned=turns[1])
    check_agree(aten.bmm, [x, y])
    check_agree(aten.baddbmm, [matrix(6, rows, columns), x, y])
    check_agree(aten.baddbmm, [matrix(columns), x, y])


def test_an_addend_as_long_as_there_are_rows() -> None:
    check_agree(aten.baddbmm, [matrix(8), matrix(3, 8, 4), matrix(3, 4, 8)])


@pytest.mark.parametrize("scale", [0, -1, 0.5, 2])
def test_what_is_scaled(scale: float) -> None:
    check_agree(lambda a, x, y: aten.addmm(a, x, y, beta=scale), [matrix(16), matrix(24, 16), matrix(16, 16)])
    check_agree(lambda a, x, y: aten.baddbmm(a, x, y, alpha=scale), [matrix(2, 24, 16), matrix(2, 24, 16), matrix(2, 16, 16)])


def test_parts_of_larger_tensors() -> None:
    whole = matrix(40, 96)
    check_agree(aten.mm, [whole[:, 16:48], whole[:32, 32:64]])
    check_agree(aten.mm, [whole[::2, :40], whole[:, ::3]])
    heads = matrix(4, 10, 3, 2, 16)
    check_agree(aten.bmm, [heads[:, :, 0, 0], heads[:, :, 1, 1].transpose(1, 2)])
    check_agree(aten.bmm, [matrix(1, 10, 16).expand(4, 10, 16), matrix(4, 16, 10)])


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e-38, -0.0])
def test_numbers_that_are_seldom_met(value: float) -> None:
    x, y = matrix(24, 32), matrix(32, 16)
    x[::5, ::3] = value
    check_agree(aten.mm, [x, y])
    check_agree(aten.addmm, [matrix(16) * value, x, y])


def claims() -> set[tuple[tuple[int, ...], bool]]:
    return {(tuple(shape), holds) for kernel, _, shape, holds in native.extension.proofs() if kernel == "product by oneDNN"}


def test_a_small_product_is_kept() -> None:
    if not native.extension.has_onednn() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch's library shows none of oneDNN's functions, or does not ask it for such products here")
    before = claims()
    check_agree(aten.bmm, [matrix(3, 17, 19), matrix(3, 19, 23)])
    check_agree(aten.mm, [matrix(17, 19), matrix(19, 13)])
    assert [holds for _, holds in claims() - before] == [True, True]
