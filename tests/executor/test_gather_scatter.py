"""Numbers picked out of rows, and sums of few (gather_scatter.h, short_sums.h, sums.h), past ATen's iterator. ATen's bits."""

import functools

import pytest
import torch

from gradc import executor
from tests.executor.agree import capture, check_agree

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.int64, torch.float16]


def _values(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(*sizes) * 100).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(64, 4), (1, 7), (6, 1), (2, 3, 5), (0, 4)], ids=str)
@pytest.mark.parametrize("count", [1, 3, 0])
def test_numbers_are_picked(dtype: torch.dtype, sizes: tuple[int, ...], count: int) -> None:
    table = _values(*sizes, dtype=dtype)
    places = torch.randint(sizes[-1], (*sizes[:-1], count))
    check_agree(lambda table, places: table.gather(-1, places), [table, places])
    check_agree(lambda table, places: table.gather(table.dim() - 1, places), [table, places])
    check_agree(lambda table, places: table.gather(0, places[..., :1] * 0), [table, places])
    check_agree(lambda table, places: table.transpose(0, -1).gather(-1, places[..., :1].transpose(0, -1) * 0), [table, places])
    check_agree(lambda table, places: table.gather(-1, places[..., ::2]), [table, places])
    check_agree(lambda table, places: table.gather(-1, places[:1]), [table, places])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(64, 4), (1, 7), (6, 1), (2, 3, 5), (0, 4)], ids=str)
@pytest.mark.parametrize("count", [1, 9, 0])
def test_picked_numbers_are_added_to(dtype: torch.dtype, sizes: tuple[int, ...], count: int) -> None:
    table, added = _values(*sizes, dtype=dtype), _values(*sizes[:-1], count, dtype=dtype)
    places = torch.randint(sizes[-1], (*sizes[:-1], count))
    check_agree(lambda *inputs: inputs[0].scatter_add(-1, *inputs[1:]), [table, places, added])
    check_agree(lambda *inputs: inputs[0].new_zeros(inputs[0].shape).scatter_add(-1, *inputs[1:]), [table, places, added])
    check_agree(lambda *inputs: inputs[0].scatter_add(0, inputs[1][..., :1] * 0, inputs[2]), [table, places, added])
    check_agree(lambda *inputs: inputs[0].scatter_add(-1, inputs[1][:1], inputs[2]), [table, places, added])


@pytest.mark.parametrize("place", [4, -1])
def test_places_that_are_not_there(place: int) -> None:
    table, added = _values(3, 4), _values(3, 1)
    good, bad = torch.zeros(3, 1, dtype=torch.int64), torch.tensor([[0], [place], [1]])
    for function in (lambda *inputs: inputs[0].gather(1, inputs[1]), lambda *inputs: inputs[0].scatter_add(1, *inputs[1:])):
        plan = executor.lower(capture(function, [table, good, added]))
        for _ in range(3):
            plan([table, good, added])
            with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
                plan([table, bad, added])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("columns", [*range(1, 10), 15, 16, 17, 25, 31, 32, 33])
@pytest.mark.parametrize("rows", [1, 2, 3, 17, 64, 65, 300, 5000])
def test_sums_of_few(dtype: torch.dtype, columns: int, rows: int) -> None:
    matrix = _values(rows, columns, dtype=dtype)
    for dimension in (0, 1, -1):
        for keeps in (False, True):
            check_agree(functools.partial(torch.sum, dim=[dimension], keepdim=keeps), [matrix])
    check_agree(lambda matrix: matrix.sum(-1), [-torch.zeros(rows, columns, dtype=dtype)])
    check_agree(lambda matrix: matrix.t().sum(0), [matrix])
    check_agree(lambda matrix: matrix.sum([0, 1]), [matrix])
    check_agree(lambda matrix: matrix.sum(-1), [_values(2, rows, columns, dtype=dtype)])
    check_agree(lambda matrix: matrix.sum(1), [_values(2, rows, columns, dtype=dtype)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reduction", range(3))
@pytest.mark.parametrize("sizes", [(64,), (3, 7), (1,), (719,), (0,), (40000,)], ids=str)
def test_the_gradient_of_mse_loss(dtype: torch.dtype, reduction: int, sizes: tuple[int, ...]) -> None:
    a, b = _values(*sizes, dtype=dtype), _values(*sizes, dtype=dtype)
    grad = torch.tensor(0.3, dtype=dtype) if reduction else _values(*sizes, dtype=dtype)
    check_agree(lambda *inputs: aten.mse_loss_backward(*inputs, reduction), [grad, a, b])
    check_agree(lambda *inputs: aten.mse_loss_backward(*inputs, reduction), [grad, a, b[:1].expand(sizes) if sizes[0] else b])
    if len(sizes) == 2:
        check_agree(lambda *inputs: aten.mse_loss_backward(*inputs, reduction), [grad, a.t().contiguous().t(), b])


def test_what_goes_straight_to_memory() -> None:
    """A policy's loss: none of its small ops asks the dispatcher."""
    table, places, added = _values(64, 4), torch.randint(4, (64, 1)), _values(64, 1)
    of = {
        "gather": (lambda table, places, added: table.gather(1, places), False),
        "scatter_add": (lambda table, places, added: table.scatter_add(1, places, added), False),
        "sum over rows": (lambda table, places, added: table.sum(-1), True),
        "sum of columns": (lambda table, places, added: table.sum(0), True),
        "mse_loss_backward": (lambda table, places, added: aten.mse_loss_backward(table.sum() * 0 + 1, table, table, 1), True),
    }
    for name, (function, is_direct) in of.items():
        plan = executor.lower(capture(function, [table, places, added]))
        assert plan.num_typed == plan.num_steps, name
        assert plan.num_direct == plan.num_steps or not is_direct, name
