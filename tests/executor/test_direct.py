"""Calls that go straight to memory (pointwise.h, product.h, sums.h, norms.h): ATen's bits, on all that they take."""

import functools
import itertools

import pytest
import torch

from gradc import executor
from gradc.bits import same_bits
from gradc.executor.core.plan import plan_spec
from tests.executor.agree import capture, check_agree

SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-40, 1.1754944e-38, 3.4e38, 0.1]
aten = torch.ops.aten
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "add_number": lambda a, b: (a + 0.3) * b,
    "sub_number": lambda a, b: (a - 0.1) * b,
    "mul_number": lambda a, b: a * 1.7 + b,
    "div_number": lambda a, b: a / 3.1 - b,
    "add_": lambda a, b: (a * 1.5).add_(b),
    "mul_": lambda a, b: (a * 1.5).mul_(b),
    "add_alpha": lambda a, b: torch.add(a, b, alpha=0.7),
    "tanh_backward": lambda a, b: aten.tanh_backward(a, b),
    "sigmoid_backward": lambda a, b: aten.sigmoid_backward(a, b),
    "silu_backward": lambda a, b: (aten.silu_backward(a, b), b.sigmoid(), aten.silu_backward(b, b) * a),
    "threshold_backward": lambda a, b: aten.threshold_backward(a, b, 0),
    "threshold_backward_1": lambda a, b: aten.threshold_backward(a, b, 0.1),
    "scalars": lambda a, b: (aten.div.Scalar(a, 64), aten.mul.Scalar(b, 0.1), aten.rsub.Scalar(a, 0.3)),
    "rsub with alpha": lambda a, b: aten.rsub.Scalar(a, 1, 2),
    "scalars in place": lambda a, b: (aten.div_.Scalar(a * 1.5, 3), aten.mul_.Scalar(b * 1.5, 1e300), (a * 1.5).sub_(0.1)),
    "unary": lambda a, b: (-a, a.abs(), b.reciprocal(), b.relu(), (a * 1.5).neg_(), (b * 1.5).relu_()),
    "compare": lambda a, b: (a == b, a != b, a < b, a <= b, a > b, a >= b),
    "compare with number": lambda a, b: (a == 0.1, a != 0.1, a < 1, b <= 0.1, a > -1e-40, b >= 1e300, a == float("nan")),
    "bitwise": lambda a, b: ((a < b) & (a > 0), (a < b) | (b > 0), ~(a < b)),
    "logical": lambda a, b: (torch.logical_not(a < b), torch.logical_or(a < 0, b < 0), torch.logical_and(a < b, b > 0)),
    "logical in place": lambda a, b: (a < b).logical_and_(b > 0),
    "where": lambda a, b: (torch.where(a < b, a, b), torch.where(a < b, 0.1, b), torch.where(a < b, b.sum(), a)),
    "masked_fill": lambda a, b: (a.masked_fill(a < b, -1e9), (a * 1.5).masked_fill_(b > 0, float("nan"))),
    "clamp": lambda a, b: (a.clamp(-0.5, 1.2), b.clamp(0, 1), a.clamp(1, -1), a.clamp(max=0.1), a.clamp(0.1, float("nan"))),
    "mixed": lambda a, b: (a * (b > 0), a + 3, a == (b > 0), a.add(b.to(torch.float16))),
}


def _values(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of special values, and many random ones; an odd number, so that vector loops have a tail."""
    pairs = torch.tensor(list(itertools.product(SPECIAL, SPECIAL)), dtype=dtype).T
    random = torch.randn(2, 5003, dtype=dtype) * torch.logspace(-3, 3, 5003, dtype=dtype)
    first, second = torch.cat([pairs, random], 1)
    return first.contiguous(), second.contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_pointwise(name, dtype):
    check_agree(BINARY[name], _values(dtype))
    square = [value[:4900].reshape(70, 70).t() for value in _values(dtype)]
    check_agree(BINARY[name], square)
    check_agree(BINARY[name], [square[0], square[1].contiguous()])  # two layouts: left to ATen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, 3, 7, 8, 15, 16, 17, 31, 33, 1023, 1025, 40_000])
def test_a_sigmoid_that_is_known_is_not_computed_again(size, dtype):
    check_agree(lambda a, b: (b.sigmoid(), aten.silu_backward(a, b)), torch.randn(2, size, dtype=dtype).mul(5).unbind(0))
    check_agree(lambda a, b: (b.sigmoid() * a, aten.silu_backward(a, b).exp()), torch.randn(2, size, dtype=dtype).unbind(0))


def test_a_sigmoid_of_before_is_another():
    def written(a, b):
        before = b.sigmoid()
        b.mul_(2)
        return before, aten.silu_backward(a, b)

    def overwritten(a, b):
        sigmoid = b.sigmoid()
        sigmoid.mul_(2)
        return sigmoid, aten.silu_backward(a, b)

    for function in (written, overwritten, lambda a, b: (b.t().sigmoid(), aten.silu_backward(a, b))):
        check_agree(function, torch.randn(2, 30, 30).unbind(0))


def test_a_sigmoid_is_kept_where_the_peak_stays():
    def at_the_peak(a, b):
        sigmoid = b.sigmoid() + 1
        return sigmoid, aten.silu_backward(a, b)

    def behind_it(a, b):
        return torch.cat([a, b, a, b]).sum(), b.sigmoid() + 1, aten.silu_backward(a, b)

    known = [
        [step.known for step in plan_spec(capture(function, torch.randn(2, 30).unbind(0))).steps]
        for function in (at_the_peak, behind_it)
    ]
    assert [sum(slot is not None for slot in slots) for slots in known] == [0, 1]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", BINARY)
def test_pointwise_on_threads(name, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check_agree(BINARY[name], torch.randn(2, 100_003).unbind(0))
        check_agree(BINARY[name], [each.contiguous() for each in torch.randn(2, 300, 301).transpose(1, 2).unbind(0)])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_broadcast(name, dtype):
    first, second = _values(dtype)
    scalar = torch.tensor(0.1, dtype=dtype)
    pairs = [
        (first[:60].view(12, 5), second[:5]),
        (first[:60].view(12, 5), second[:12].view(12, 1)),
        (first[:12].view(12, 1), second[:60].view(12, 5)),
        (first[:6].view(2, 1, 3, 1), second[:20].view(1, 4, 1, 5)),
        (first[:60].view(12, 5), scalar),
        (scalar, second[:60].view(12, 5)),
        (scalar, scalar),
        (scalar.view(1, 1), scalar),
        (first[:5].expand(12, 5), second[:60].view(12, 5)),
        (first[:60].view(12, 5), second[:60].view(5, 12).t()),
        (first[:60].view(5, 12).t(), second[:60].view(12, 5)),
        (first[:60:2].view(6, 5), second[:90:3].view(6, 5)),
        (first[:4900].view(70, 70), second[:70]),
        (first[:0], second[:1]),
    ]
    for pair in pairs:
        is_spread = pair[0].shape == torch.broadcast_shapes(pair[0].shape, pair[1].shape)
        if is_spread or name not in ("add_", "mul_", "masked_fill"):  # which cannot grow what they write to
            check_agree(BINARY[name], pair)


def test_in_place_overlap_is_refused_as_in_eager():
    memory = torch.arange(9.0)

    def shifted(x):
        return x[:8].add_(x[1:])

    program = capture(lambda a, b: a.add_(b), [torch.ones(8), torch.ones(8)])
    run = executor.lower(program)
    with pytest.raises(RuntimeError, match="memory location"):
        shifted(memory)
    with pytest.raises(RuntimeError, match="memory location"):
        run([memory[:8], memory[1:]])
    same = torch.full((8,), 3.0)
    run([same, same])
    assert same.tolist() == [6.0] * 8


def _matrix(rows: int, columns: int, layout: str, dtype: torch.dtype) -> torch.Tensor:
    match layout:
        case "rows":
            return torch.randn(rows, columns, dtype=dtype)
        case "columns":
            return torch.randn(columns, rows, dtype=dtype).t()
        case "wide rows":
            return torch.randn(rows, columns + 3, dtype=dtype)[:, 1 : columns + 1]
        case "wide columns":
            return torch.randn(columns, rows + 3, dtype=dtype).t()[1 : rows + 1]
        case "one number":
            return torch.randn((), dtype=dtype).expand(rows, columns)
        case "one column":
            return torch.randn(rows, 1, dtype=dtype).expand(rows, columns)
        case _:
            return torch.randn(rows, 2 * columns, dtype=dtype)[:, ::2]


SIZES = [
    (8, 32, 32),
    (2, 2, 2),
    (3, 17, 5),
    (64, 8, 64),
    (16, 96, 256),
    (150, 64, 200),
    (1, 4, 4),
    (4, 1, 4),
    (4, 4, 1),
    (1, 64, 32),
    (64, 1, 32),
    (256, 32, 1),
    (1, 1, 7),
    (1, 7, 1),
    (7, 1, 1),
    (1, 1, 1),
    (33, 70, 19),
]
LAYOUTS = ["rows", "columns", "wide rows", "wide columns", "one number", "one column", "strided"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("first, second", itertools.product(LAYOUTS, LAYOUTS))
def test_products(first, second, dtype):
    for m, k, n in SIZES:
        a, b = _matrix(m, k, first, dtype), _matrix(k, n, second, dtype)
        for addend in (None, torch.randn(n, dtype=dtype), torch.randn(m, n, dtype=dtype), torch.randn(n, m, dtype=dtype).t()):
            inputs = [a, b] if addend is None else [addend, a, b]
            function = torch.mm if addend is None else torch.addmm
            (got,) = executor.lower(capture(function, inputs))(list(inputs))
            expected = function(*inputs)
            assert got.stride() == expected.stride()
            assert same_bits(got, expected), (m, k, n)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products_make_no_tensors(sizes):
    m, k, n = sizes
    inputs = [torch.randn(m, k), torch.randn(()).expand(k, n)]
    assert executor.lower(capture(torch.mm, inputs)).num_direct == (k * n <= 16384)  # a larger copy is ATen's


PADDED = {
    "columns": lambda g: aten.slice_backward(g, [6, 10], 1, 2, 7, 1),
    "from the end": lambda g: aten.slice_backward(g, [6, 10], 1, -5, 9223372036854775807, 1),
    "every other": lambda g: aten.slice_backward(g, [6, 10], -1, 1, 10, 2),
    "rows": lambda g: aten.slice_backward(g, [9, 5], 0, 3, 9, 1),
    "every third row": lambda g: aten.slice_backward(g, [18, 5], 0, 0, 100, 3),
    "one of three dimensions": lambda g: aten.slice_backward(g.view(2, 3, 5), [2, 8, 5], 1, 4, 7, 1),
    "one row": lambda g: aten.select_backward(g, [6, 4, 5], 1, 2),
    "one column": lambda g: aten.select_backward(g, [6, 5, 4], 2, -1),
    "the first": lambda g: aten.select_backward(g, [3, 6, 5], -3, 0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PADDED)
def test_padded_gradients(name, dtype):
    gradient = torch.randn(6, 5).to(dtype)
    gradient[0, 0], gradient[1, 0] = -0.0, float("nan")
    layouts = [gradient, gradient[:1, :1].expand(6, 5), gradient.t().contiguous().t(), gradient[:1].expand(6, 5)]
    for each in layouts if "three" not in name else layouts[:2]:
        check_agree(PADDED[name], [each])


LARGE = [  # sizes, dimension, start, end, step
    ([4, 256, 700], 1, 0, 255, 1),
    ([4, 256, 700], 1, 7, 250, 1),
    ([3000, 70], 1, 20, 70, 1),
    ([700, 300], 0, 250, 251, 1),
    ([2, 90000], 1, 89999, 90000, 1),
    ([2, 90001], 1, 1, 3, 1),
    ([600, 400], 1, 1, 400, 3),
    ([100000, 3], 1, 1, 2, 1),
]


def _padded(sizes, slice_of, gradient):
    return aten.slice_backward(gradient, sizes, *slice_of)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_padded_gradients_by_all_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for sizes, *slice_of in LARGE:
            gradient = torch.randn(aten.slice.Tensor(torch.empty(sizes), *slice_of).shape)
            check_agree(functools.partial(_padded, sizes, slice_of), [gradient])
    finally:
        torch.set_num_threads(before)


def test_padded_gradients_make_no_tensors():
    inputs = [torch.randn(6, 5)]
    assert all(executor.lower(capture(function, inputs)).num_direct for function in PADDED.values())


def test_views_with_a_dimension_of_size_1():
    def views(x):
        return x.unsqueeze(0) * 2, x.unsqueeze(-1) * 2, x.sum().expand(4, 1) * 2, x.view(1, 4, 1) * 2, x[:1].expand(1, 3, 1) * 2

    check_agree(views, [torch.randn(4)])
    check_agree(views, [torch.randn(4, 3)[:, 1]])


def test_lower_precision_is_respected():
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    run = executor.lower(capture(torch.mm, [a, b]))
    torch.set_float32_matmul_precision("medium")
    try:
        assert same_bits(run([a, b])[0], torch.mm(a, b))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert same_bits(run([a, b])[0], torch.mm(a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_column_sums(dtype):
    for rows, columns in [(2, 2), (8, 32), (15, 96), (16, 64), (17, 33), (64, 16), (257, 96), (1000, 32), (8, 1), (1, 32)]:
        x = torch.randn(rows, columns, dtype=dtype) * torch.logspace(-2, 2, rows, dtype=dtype)[:, None]
        check_agree(lambda x: x.sum(0, keepdim=True), [x])
        check_agree(lambda x: x.sum(0), [x])
        check_agree(lambda x: x.sum(1), [x])
        check_agree(lambda x: x.t().sum(0), [x])
        check_agree(lambda x: x.sum(0, dtype=torch.float64), [x])


def _batch_norm_inputs(shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Input, weight, bias, running mean and variance; the channels differ in scale, and two of them are special."""
    x = torch.randn(shape).transpose(0, 1).contiguous()
    x *= torch.logspace(-22, 6, len(x)).reshape(-1, *[1] * (x.dim() - 1))
    x[-1, 0] = float("inf")
    x[-2] = 1e-41
    return [x.transpose(0, 1).contiguous(), *torch.randn(3, shape[1]), torch.rand(shape[1])]


@pytest.mark.parametrize(
    "shape", [(16, 16, 16, 16), (2, 8, 3, 3), (1, 9, 7), (4, 13, 5, 1, 2), (5, 17, 1, 2), (3, 4, 5), (8, 16)], ids=str
)
@pytest.mark.parametrize(("momentum", "eps"), [(0.1, 1e-5), (0.37, 1e-3), (1.0, 0.0), (0.0, 1e-12)])
def test_batch_norm(shape, momentum, eps):
    def norm(x, weight, bias, mean, var):
        return aten.native_batch_norm(x, weight, bias, mean, var, True, momentum, eps)

    x, *parameters = _batch_norm_inputs(shape)
    check_agree(norm, [x, *parameters])
    check_agree(lambda x, mean, var: norm(x, None, None, mean, var), [x, *parameters[2:]])
    check_agree(lambda x, weight: norm(x, weight, None, None, None), [x, parameters[0]])
    check_agree(lambda *tensors: norm(*(tensor.double() for tensor in tensors)), [x, *parameters])
    check_agree(norm, [x.transpose(0, 1).contiguous().transpose(0, 1), *parameters])  # another layout: left to ATen


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_batch_norm_on_threads(threads):
    inputs = _batch_norm_inputs((16, 32, 8, 8))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check_agree(lambda *tensors: aten.native_batch_norm(*tensors, True, 0.1, 1e-5), inputs)
    finally:
        torch.set_num_threads(before)
