"""Calls that go straight to memory (index_rows.h, fills.h, sums.h): rows by number, fills, sums of everything. ATen's bits."""

import pytest
import torch

from gradc import executor
from tests.executor.agree import capture, check_agree

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.int64, torch.float16]
NUMBERS = torch.tensor([3, 0, 3, 4, 1, 3, 0])


def _tables(dtype: torch.dtype) -> list[torch.Tensor]:
    """Of five rows: wide, narrow, single numbers, of three dimensions, with a dimension of size 1, and with other strides."""
    table = (torch.randn(5, 60) * 100).to(dtype)
    wide = [
        table,
        *(table[:, :width].contiguous() for width in (2, 3, 4)),
        table[:, 0].contiguous(),
        table.reshape(5, 3, 20).contiguous(),
        table[:, :1].contiguous(),
        (torch.randn(5, 64) * 100).to(dtype),
        (torch.randn(5, 256) * 100).to(dtype),
        (torch.randn(5, 96) * 100).to(dtype)[:, :32],
    ]
    return [*wide, table[:, :30], table[:, ::2], table.t().contiguous().t(), table[:, 4]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_taken(dtype):
    for table in _tables(dtype):
        check_agree(lambda table, numbers: table[numbers], [table, NUMBERS])
        check_agree(lambda table, numbers: table[numbers - 5], [table, NUMBERS])
        check_agree(lambda table, numbers: table[numbers.view(7, 1)], [table, NUMBERS])
        check_agree(lambda table, numbers: table.index_select(0, numbers), [table, NUMBERS])
        check_agree(lambda table, numbers: table[numbers[:0]], [table, NUMBERS])
        check_agree(lambda table, numbers: table[numbers.int()], [table, NUMBERS])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_added_up(dtype):
    for table in _tables(dtype):
        added = torch.cat([table, table[:2] * 3])
        check_agree(lambda *inputs: inputs[0].index_put((inputs[1],), inputs[2], True), [table, NUMBERS, added])
        check_agree(lambda *inputs: inputs[0].index_put((inputs[1] - 5,), inputs[2], True), [table, NUMBERS, added])
        check_agree(lambda *inputs: inputs[0].index_put((inputs[1],), inputs[2]), [table, torch.arange(5), table])
        check_agree(lambda *inputs: inputs[0].index_add(0, inputs[1], inputs[2]), [table, NUMBERS, added])
        check_agree(lambda *inputs: inputs[0].index_add(0, inputs[1], inputs[2], alpha=2), [table, NUMBERS, added])
        check_agree(
            lambda *inputs: inputs[0].new_zeros(inputs[0].shape).index_put((inputs[1],), inputs[2], True),
            [table, NUMBERS, added],
        )


@pytest.mark.parametrize("threads", [1, 2])
def test_many_additions_to_few_rows(threads):
    numbers, added = torch.randint(0, 9, (992,)), torch.randn(992, 40)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check_agree(lambda *inputs: inputs[0].index_add(0, *inputs[1:]), [torch.randn(9, 40), numbers, added])
        check_agree(lambda *inputs: inputs[0].index_add(0, *inputs[1:]), [torch.randn(9, 8), numbers, added[:, :8]])
        check_agree(
            lambda *inputs: inputs[0].index_add(0, *inputs[1:]),
            [torch.randn(9, 32), numbers.sort().values, added[:, :32].contiguous()],
        )
        check_agree(
            lambda *inputs: inputs[0].index_put(inputs[1:2], inputs[2], True),
            [torch.randn(9, 8), numbers, added[:, :8].contiguous()],
        )
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "function",
    [
        lambda table, numbers: table[numbers],
        lambda table, numbers: table.index_select(0, numbers),
        lambda table, numbers: table.index_add(0, numbers, table),
        lambda table, numbers: table.index_put((numbers,), table, True),
    ],
)
@pytest.mark.parametrize("number", [5, -6, 2**40])
def test_a_row_that_is_not_there_raises_as_in_eager(function, number):
    table, numbers = torch.randn(5, 3), torch.arange(5)
    run = executor.lower(capture(function, [table, numbers]))
    numbers[2] = number
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(table, numbers)
    with pytest.raises(eager.type) as ours:
        run([table, numbers])
    assert str(ours.value).splitlines()[0] == str(eager.value).splitlines()[0]


def test_negative_numbers_for_index_select_raise_as_in_eager():
    table, numbers = torch.randn(5, 3), torch.arange(5)
    run = executor.lower(capture(lambda table, numbers: table.index_select(0, numbers), [table, numbers]))
    with pytest.raises(Exception) as eager:  # of the type that torch takes
        table.index_select(0, numbers - 1)
    with pytest.raises(eager.type):
        run([table, numbers - 1])


FILLS = {
    "zeros": lambda x: (torch.zeros(3, 4), torch.zeros(2, dtype=torch.float64), torch.zeros(()), torch.zeros(1, 3)),
    "ones": lambda x: (torch.ones(3, 4), x.new_ones(5, 1), torch.ones_like(x), torch.ones_like(x.t())),
    "full": lambda x: (torch.full((3, 2), -1e9), x.new_full((4,), float("-inf")), torch.full_like(x, 0.1), torch.full((2,), 7)),
    "like": lambda x: (torch.zeros_like(x), torch.zeros_like(x, dtype=torch.float64), torch.zeros_like(x, dtype=torch.bool)),
    "like permuted": lambda x: torch.zeros_like(x.t()[:, ::2]),
    "scalar_tensor": lambda x: (aten.scalar_tensor(0.3), aten.scalar_tensor(3), aten.scalar_tensor(-0.0)),
    "fill_": lambda x: (torch.empty_like(x).fill_(2.5), x.new_empty(3, 1).fill_(1), torch.empty(4).zero_()),
    "powers": lambda x: (x.pow(0), x.pow(1), x.pow(0.0), x.pow(1.0), x.pow(True), x.pow(2), x.t().pow(1), x.t().pow(0)),
    "fill a part": lambda x: (x * 1).t().fill_(0.7),
    "fill a column": lambda x: (x * 1)[:, 0].fill_(3.0),
    "nan": lambda x: torch.full((3,), float("nan")),
    "new_zeros": lambda x: (x.new_zeros(2, 3), x.new_zeros(()), x.new_zeros(0, 3), x.new_zeros(2, dtype=torch.int64)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FILLS)
def test_fills(name, dtype):
    check_agree(FILLS[name], [torch.randn(6, 5, dtype=dtype)])
    check_agree(FILLS[name], [torch.randn(6, 1, dtype=dtype)])


def test_memory_that_is_filled_in_deterministic_mode():
    run = executor.lower(capture(lambda x: torch.empty_like(x), [torch.ones(4)]))
    torch.use_deterministic_algorithms(True)
    try:
        assert run([torch.ones(4)])[0].isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_another_device_is_left_to_torch():
    (made,) = executor.lower(capture(lambda x: torch.zeros(3, device="meta"), [torch.ones(4)]))([torch.ones(4)])
    assert made.device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sums_of_everything(dtype):
    for size in [1, 3, 4, 7, 8, 9, 15, 31, 32, 33, 63, 64, 100, 511, 513, 1000, 4095, 4097, 16383, 32767, 32768, 40000]:
        x = torch.randn(size, dtype=dtype) * torch.logspace(-4, 4, size, dtype=dtype)
        check_agree(lambda x: (x.sum(), x.mean()), [x])
        check_agree(lambda x: (x.sum(dtype=torch.float64), x.mean(dtype=torch.float64)), [x])
    for x in (torch.randn(31, 77, dtype=dtype), torch.randn(5, 1, 90, dtype=dtype), torch.full((64,), -0.0, dtype=dtype)):
        check_agree(lambda x: (x.sum(), x.mean(), x.t().sum() if x.dim() == 2 else x.sum(0)), [x])
        check_agree(lambda x: x[:, ::2].mean() if x.dim() > 1 else x[::2].mean(), [x])


VIEWS = {
    "t": lambda x: (x.t(), x.t() * 2),
    "transpose": lambda x: x.view(1, 6, 5).transpose(0, 1) + 1,
    "slice": lambda x: (x[:, :1] * 2, x[1:2], x[:, 1:2].t()),
    "unsafe_split": lambda x: [part.sigmoid_() for part in torch.unsafe_split(x * 2, 2, 1)],
    "unsafe_split of columns": lambda x: [part.tanh_().mul_(2) for part in torch.unsafe_split(x * 2, 1, 1)],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_with_a_dimension_of_size_1(name):
    check_agree(VIEWS[name], [torch.randn(6, 5)])
    check_agree(VIEWS[name], [torch.randn(5, 6).t()])


SHAPES_OF_LOSSES = [(), (1,), (1, 1), (7,), (8,), (45,), (64, 5), (3, 5, 7), (719,), (32_767,), (32_768,)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES_OF_LOSSES, ids=str)
def test_mse_loss(dtype, shape):
    a, b = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    for reduction in ("mean", "sum", "none"):
        loss = lambda a, b, reduction=reduction: torch.nn.functional.mse_loss(a, b, reduction=reduction)
        check_agree(loss, [a, b])
        check_agree(loss, [a * float("nan"), b])
        check_agree(loss, [a, b.t().contiguous().t() if b.dim() == 2 else b.flatten()[0].expand(shape)])


def test_mse_loss_goes_straight_to_memory():
    plan = executor.lower(capture(torch.nn.functional.mse_loss, [torch.randn(64), torch.randn(64)]))
    assert plan.num_direct == 1


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 4), (1, 5), (0, 3), (3, 300, 40)], ids=str)
def test_cat(dtype, shape):
    x = (torch.randn(shape) * 10).to(dtype)
    for dimension in range(-1, x.dim()):
        cat = lambda parts, dimension=dimension: torch.cat(parts, dimension)
        half = x.narrow(dimension, 0, x.shape[dimension] // 2)
        check_agree(lambda x: cat([x, x * 1, x]), [x])
        check_agree(lambda x, half: cat([x, half.contiguous(), half]), [x, half])
        check_agree(lambda x: cat([x.t(), x.t()]) if x.dim() == 2 else cat([x] * 9), [x])
        check_agree(lambda x: cat([x, x.double() if x.dtype is torch.float32 else x]), [x])
        check_agree(lambda x: cat([x, x.new_zeros(0)]), [x])


def test_cat_between_direct_calls():
    def function(x, y):
        gates = torch.cat([x * 2, y + 1, x - y, x * y], 1)
        return gates * 3, gates[:, 2:5] + 1, torch.cat([gates, gates.neg()])

    check_agree(function, [torch.randn(5, 4), torch.randn(5, 4)])
    assert executor.lower(capture(function, [torch.randn(5, 4), torch.randn(5, 4)])).num_direct >= 8
