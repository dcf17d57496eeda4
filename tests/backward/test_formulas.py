"""Nodes whose C++ code takes another path on fake tensors: gradc traces the path that eager takes on real ones."""

import pytest
import torch

from gradc.journal import listening
from tests.oracle import check, constant, leaf

grad = torch.autograd.grad
NAN = float("nan")
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
PRODUCTS = [
    torch.prod,
    lambda x: x.prod(0),
    lambda x: x.prod(-1, keepdim=True),
    lambda x: x.cumprod(0),
    lambda x: x.cumprod(-1),
]
REDUCTIONS = [torch.max, torch.min, torch.median, torch.nanmedian]


def values(*numbers, dtype=torch.float32):
    return lambda: torch.tensor(numbers, dtype=dtype).requires_grad_()


def mask(*shape):
    return lambda: torch.rand(shape) > 0.4


def zeros_at(*shape, num):
    """Makes a random leaf, ``num`` of whose elements are zero."""

    def make():
        x = torch.randn(shape)
        x.view(-1)[torch.randperm(x.numel())[:num]] = 0
        return x.requires_grad_()

    return make


def first_order(function):
    """A step: the gradients of ``function``'s result, for random incoming ones and for others of every layout."""

    def step(compile, *inputs):
        y = compile(function)(*inputs)
        targets = [x for x in inputs if x.requires_grad]
        incoming = [torch.randn_like(y), torch.zeros_like(y), -torch.zeros_like(y), torch.ones((), dtype=y.dtype).expand_as(y)]
        if y.dim() == 2:
            incoming.append(torch.randn(y.shape[1], y.shape[0]).to(y.dtype).t())
        return y, [grad(y, targets, g, retain_graph=True) for g in incoming]

    return step


def higher_orders(function):
    """A step: the first three gradients, each one through the sum of the squares of the one before."""

    def step(compile, *inputs):
        targets = [x for x in inputs if x.requires_grad]
        y, found = compile(function)(*inputs), []
        y = (y * torch.linspace(0.3, 2, y.numel(), dtype=y.real.dtype).view(y.shape)).abs().square().sum()
        for _ in range(3):
            grads = [g for g in grad(y, targets, create_graph=True, allow_unused=True) if g is not None]
            found += [g.detach().clone() for g in grads]
            y = sum(g.abs().square().sum() for g in grads)
            if not y.requires_grad:
                break
        return found

    return step


# ---- the whole of a tensor's maximum, minimum, median


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reduction_to_one_value(reduce, dtype):
    for make in (leaf(5, 7, dtype=dtype), leaf(dtype=dtype), lambda: torch.randn(7, 5, dtype=dtype).t().requires_grad_()):
        check(first_order(lambda x: reduce(x)), make)
        check(first_order(lambda x: reduce(x.sin()) * 3), make)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("numbers", [(1.0, 2, 2, 1, 2, 1), (1, NAN, 3, NAN), (0, -0.0, 0), (float("inf"),) * 3])
def test_ties_and_nans(reduce, numbers):
    check(first_order(lambda x: reduce(x * 1.0)), values(*numbers))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reduction_of_an_expanded_tensor(reduce):
    check(first_order(lambda x: reduce(x.expand(4, 3))), leaf(3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reduction_at_higher_orders(reduce, dtype):
    check(higher_orders(lambda x: reduce(x.sin()) ** 2 * x), leaf(5, 7, dtype=dtype))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reduction_of_dynamic_sizes(reduce):
    def step(compile, x):
        f = compile(lambda x: reduce(x.sin()) * x, dynamic=True)
        return [grad(f(x[:n]).square().sum(), x) for n in (4, 3, 5)]

    check(step, leaf(5, 7))


# ---- the larger or smaller of two tensors


CHOICES = [torch.maximum, torch.minimum, torch.fmax, torch.fmin, lambda x, y: x.clamp(min=y), lambda x, y: x.clamp_max(y)]


def layouts():
    """Makes a pair of leaves that are equal here and there, in every layout."""
    steps = torch.arange(20.0).view(5, 4) % 3
    for x in (steps.clone(), steps.view(4, 5).t(), torch.cat([steps, steps], 1)[:, ::2], torch.tensor([[1, NAN, 2, 1]] * 5)):
        for y in (torch.ones(5, 4), torch.ones(4, 5).t(), torch.tensor([1, NAN, 1, 2]), torch.ones(())):
            yield lambda x=x: x.detach().requires_grad_(), lambda y=y: y.clone().requires_grad_()


@pytest.mark.parametrize("choose", CHOICES)
def test_of_two_tensors_the_chosen_one_gets_the_gradient_in_its_layout(choose):
    for x, y in layouts():
        check(first_order(choose), x, y)


@pytest.mark.parametrize("choose", CHOICES)
def test_of_a_tensor_and_itself(choose):
    check(first_order(lambda x: choose(x, x)), lambda: torch.randn(4, 2).t().requires_grad_())


def test_between_two_tensors():
    between = first_order(lambda x, y, z: x.clamp(y, z))
    check(between, lambda: torch.randn(4, 5).t().requires_grad_(), leaf(5, 4), leaf(5, 4), allow_fallback=True)


@pytest.mark.parametrize("choose", CHOICES)
def test_choices_at_higher_orders(choose):
    for x, y in layouts():
        check(higher_orders(lambda x, y: choose(x.sin(), y.sin()) ** 2 * x), x, y)


# ---- masked_fill, index_fill, index_put with a value that needs a gradient


def fill(x, v, m):
    return x.sin().masked_fill(m, v)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_masked_fill(dtype):
    check(first_order(fill), leaf(40, 50, dtype=dtype), leaf(dtype=dtype), mask(40, 50))
    check(first_order(fill), leaf(40, 50, dtype=dtype), leaf(dtype=dtype), mask(50))
    check(first_order(fill), leaf(50, dtype=dtype), leaf(dtype=dtype), mask(40, 50))
    check(first_order(fill), leaf(40, 50, dtype=dtype), leaf(dtype=dtype), lambda: torch.zeros(40, 50, dtype=torch.bool))
    check(first_order(fill), leaf(dtype=dtype), leaf(dtype=dtype), mask())


def test_masked_fill_of_a_constant():
    check(first_order(fill), constant(4, 5), leaf(), mask(4, 5))
    check(first_order(lambda x, v, m: x.sin().masked_fill(m, v)), leaf(4, 5), constant(), mask(4, 5))


def test_masked_fill_in_place():
    check(first_order(lambda x, v, m: x.sin().masked_fill_(m, v).cos()), leaf(40, 50), leaf(), mask(40, 50))


def in_place_on_a_view(x, v, m):
    y = x.sin()
    y[1:].masked_fill_(m, v)
    return y.cos()


def test_masked_fill_in_place_on_a_view():
    """No hook gets to a node inside CopySlices, so it runs live."""
    report = check(first_order(in_place_on_a_view), leaf(40, 50), leaf(), mask(39, 50), allow_fallback=True)
    assert list(report.fallbacks) == ["backward that cannot be traced"]
    check(higher_orders(in_place_on_a_view), leaf(40, 50), leaf(), mask(39, 50), allow_fallback=True)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_masked_fill_at_higher_orders(dtype):
    is_lazy = dtype.is_complex  # the derivative of sin gives a lazy conjugate
    check(higher_orders(fill), leaf(20, 30, dtype=dtype), leaf(dtype=dtype), mask(20, 30), allow_fallback=is_lazy)
    check(higher_orders(fill), leaf(30, dtype=dtype), leaf(dtype=dtype), mask(20, 30), allow_fallback=is_lazy)


def test_masked_fill_of_dynamic_sizes():
    def step(compile, x, v, m):
        f = compile(fill, dynamic=True)
        return [grad(f(x[:n], v, m[:n]).square().sum(), (x, v)) for n in (20, 30, 40)]

    check(step, leaf(40, 50), leaf(), mask(40, 50))


def test_masked_fill_under_autocast():
    def step(compile, x, w, v, m):
        with torch.autocast("cpu", torch.bfloat16):
            y = compile(lambda x, w, v, m: (x @ w).masked_fill(m, v.bfloat16()))(x, w, v, m)
            return grad(y.float().square().sum(), (x, w, v))

    check(step, leaf(20, 30), leaf(30, 40), leaf(), mask(20, 40))


def test_masked_fill_with_other_work_around_it():
    def function(x, v, m):
        y = (x * v).masked_fill(m, v.exp())
        return (y.max() + y.masked_fill(~m, v * 2).sum(0)) * v

    check(first_order(function), leaf(20, 30), leaf(), mask(20, 30))
    check(higher_orders(function), leaf(20, 30), leaf(), mask(20, 30))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
def test_index_fill(dtype):
    index = lambda: torch.tensor([3, 1, 3, 0])
    for dim in (0, 1, -1):
        step = lambda x, v, i: x.sin().index_fill(dim, i, v)
        check(first_order(step), leaf(6, 5, dtype=dtype), leaf(dtype=dtype), index)
        check(higher_orders(step), leaf(6, 5, dtype=dtype), leaf(dtype=dtype), index, allow_fallback=dtype.is_complex)


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_by_a_mask(accumulate):
    def put(x, v, m):
        return x.sin().index_put((m,), v, accumulate)

    check(first_order(put), leaf(20, 30), leaf(), mask(20, 30))
    check(first_order(put), leaf(20, 30), leaf(), mask(20))
    check(first_order(put), leaf(20, 30), leaf(30), mask(20))
    check(first_order(put), leaf(4, 5), leaf(2), lambda: torch.arange(20).view(4, 5) % 9 == 8)
    check(first_order(put), constant(20, 30), leaf(), mask(20, 30))
    check(higher_orders(put), leaf(20, 30), leaf(), mask(20, 30), allow_fallback=True)


# ---- products


@pytest.mark.parametrize("num", [0, 1, 2, 9])
@pytest.mark.parametrize("function", PRODUCTS)
def test_products(function, num):
    check(first_order(lambda x: function(x) * 2), zeros_at(5, 7, num=num), allow_fallback=True)
    check(first_order(lambda x: function(x.sin())), zeros_at(5, 7, num=num), allow_fallback=True)
    check(first_order(lambda x: function(x.t())), zeros_at(5, 7, num=num), allow_fallback=True)
    check(first_order(lambda x: function(x[:, None].expand(5, 4, 7)[:, :, 2])), zeros_at(5, 7, num=num), allow_fallback=True)
    check(first_order(lambda x: function(x[0].expand(5, 7))), zeros_at(5, 7, num=num), allow_fallback=True)
    check(first_order(lambda x: function(x[:, 0, None].expand(5, 7))), zeros_at(5, 7, num=num), allow_fallback=True)
    check(higher_orders(function), zeros_at(4, 3, num=num), allow_fallback=True)


@pytest.mark.parametrize("function", [torch.prod, lambda x: x.prod(0), lambda x: x.cumprod(0)])
def test_products_are_compiled(function):
    def step(compile, x):
        y = compile(lambda x: function(x.sin()))(x)
        return grad(y, x, torch.randn_like(y))

    for num in (0, 1, 3):
        check(step, zeros_at(5, 7, num=num))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (1, 5), (5, 1), (1, 1)])
@pytest.mark.parametrize("function", PRODUCTS)
def test_products_of_small_tensors(function, shape):
    check(first_order(lambda x: function(x.sin())), leaf(*shape), allow_fallback=True)
    check(first_order(lambda x: function(x.sin())), zeros_at(*shape, num=1), allow_fallback=True)


def test_products_of_dynamic_sizes():
    def step(compile, x):
        f = compile(lambda x: x.prod() + x.prod(0) + x.cumprod(1), dynamic=True)
        return [grad(f(x[:n]).square().sum(), x) for n in (3, 4, 5)]

    check(step, leaf(5, 7), allow_fallback=True)


@pytest.mark.parametrize(
    "function", [torch.max, lambda x: x.prod(0), lambda x: x.cumprod(1), lambda x: fill(x, x[0, 0], x > 0)]
)
def test_backward_under_autocast(function):
    def step(compile, x):
        y = compile(lambda x: function(x.sin()) * 2)(x)
        with torch.autocast("cpu", torch.bfloat16):
            return grad(y, x, torch.randn_like(y))

    check(step, leaf(5, 7))
    check(step, zeros_at(5, 7, num=2))


# ---- linear algebra


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("rows, columns", [(4, 4), (6, 3), (3, 6), (1, 4)])
def test_trace(rows, columns, dtype):
    step = lambda x: torch.trace(x.sin()) ** 3
    check(first_order(step), leaf(rows, columns, dtype=dtype))
    check(higher_orders(step), leaf(rows, columns, dtype=dtype), allow_fallback=dtype.is_complex)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_matrix_exp(dtype):
    for shape in ((3, 3), (2, 4, 4)):
        check(first_order(lambda x: torch.matrix_exp(x.sin())), leaf(*shape, dtype=dtype), allow_fallback=dtype.is_complex)
        check(higher_orders(lambda x: torch.matrix_exp(x.sin())), leaf(*shape, dtype=dtype), allow_fallback=dtype.is_complex)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_determinants(dtype):
    singular = lambda: torch.ones(3, 3, dtype=dtype).requires_grad_()
    transposed = lambda: torch.randn(3, 3, dtype=dtype).t().requires_grad_()
    for make in (leaf(3, 3, dtype=dtype), leaf(2, 4, 4, dtype=dtype), singular, transposed):
        check(first_order(lambda x: torch.linalg.det(x)), make)
        check(higher_orders(lambda x: torch.linalg.det(x)), make, allow_fallback=True)
    for make in (leaf(3, 3, dtype=dtype), leaf(2, 4, 4, dtype=dtype), transposed):
        check(first_order(lambda x: torch.linalg.slogdet(x)[1]), make)
        check(higher_orders(lambda x: torch.linalg.slogdet(x)[1]), make, allow_fallback=dtype.is_complex)


@pytest.mark.parametrize("rows, columns", [(4, 4), (6, 3), (3, 6)])
@pytest.mark.parametrize("part", [lambda L, U: L.sum(), lambda L, U: U.sum(), lambda L, U: L.sum() * U.square().sum()])
def test_lu_unpack(part, rows, columns):
    def step(x, pivots):
        _, L, U = torch.lu_unpack(x.sin(), pivots)
        return part(L, U) * x

    pivots = lambda: torch.arange(1, min(rows, columns) + 1, dtype=torch.int32)
    check(first_order(step), leaf(rows, columns), pivots)
    check(higher_orders(step), leaf(rows, columns), pivots)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_householder_products(dtype):
    transposed = lambda: torch.randn(3, 5, dtype=dtype).t().requires_grad_()
    for make in (leaf(5, 3, dtype=dtype), transposed, leaf(2, 5, 3, dtype=dtype)):
        tau = leaf(*make().shape[:-2], 3, dtype=dtype)
        check(first_order(lambda x, t: torch.linalg.householder_product(x, t)), make, tau, allow_fallback=dtype.is_complex)
        check(first_order(lambda x, t: torch.linalg.householder_product(x, t[..., :2])), make, tau, allow_fallback=True)
        check(higher_orders(lambda x, t: torch.linalg.householder_product(x, t)), make, tau, allow_fallback=True)
    for left in (False, True):
        for transpose in (False, True):
            step = lambda x, t, other: torch.ormqr(x, t, other, left, transpose)
            check(first_order(step), leaf(5, 3), leaf(3), leaf(5, 5))
            check(first_order(step), lambda: torch.randn(3, 5).t().requires_grad_(), leaf(3), leaf(5, 5))
            check(first_order(step), leaf(5, 3), constant(3), leaf(5, 5))


# ---- how it is done


def test_nothing_of_the_other_path_is_left():
    """The C++ code of a node with a formula runs on the fake tensors, but nothing of it is recorded."""

    def step(compile, x, v, m):
        return grad(compile(fill)(x, v, m).sum(), (x, v))

    with listening() as events:
        check(step, leaf(4, 5), leaf(), mask(4, 5))
    texts = [text for artifact, text in events if artifact == "graphs" and isinstance(text, str)]
    programs = [text for text in texts if text.startswith("backward of")]
    assert programs
    for text in programs:
        assert text.count("gradc.masked_sum") == 1 and "where" not in text, text


def test_an_error_leaves_nothing_behind():
    """A region whose formula refuses runs live; the modes are as before."""

    def step(compile, x):
        y = compile(lambda x: x.sin().cumprod(0))(x)
        return grad(y.sum(), x), torch.is_grad_enabled()

    report = check(step, leaf(0, 3), allow_fallback=True)
    assert list(report.fallbacks) == ["backward that cannot be traced"]
    assert not torch._C._len_torch_dispatch_stack()


def test_second_order_through_the_maximum_of_two_dtypes():
    """Each operand's gradient has its own dtype, where a formula of ours stands for torch's as well (torch 2.14)."""

    def step(compile, x, y):
        (first,) = grad(compile(torch.maximum)(x, y).float().square().sum(), y, create_graph=True)
        return grad(first.float().square().sum(), (x, y), allow_unused=True)

    check(step, leaf(4), leaf(4, dtype=torch.float16), allow_fallback=True)


@pytest.mark.parametrize("choose", CHOICES)
def test_a_broadcast_operand_of_another_dtype_is_summed_in_its_own(choose):
    """The engine sums what was broadcast before it casts: in half precision, so that the sum is rounded to it (torch 2.14)."""
    for seed in range(6):
        torch.manual_seed(seed)
        check(first_order(choose), leaf(4, 4, dtype=torch.float16), leaf())
        check(first_order(choose), leaf(), leaf(4, 4, dtype=torch.float16))
