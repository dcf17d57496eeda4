"""Autocast's cache of weights across regions, eager code and contexts: one copy per weight, in its first dtype."""

import pytest
import torch
import torch.nn.functional as F

from gradc import native
from gradc.bits import same_bits
from gradc.tape.weight_casts import cached_cast
from tests.oracle import check, leaf

OTHER_CACHE = {"weights that autocast keeps other copies of"}


def autocast(dtype=torch.bfloat16, **options):
    return torch.autocast("cpu", dtype, **options)


def twice(x, w):
    with autocast(torch.float16):
        return (x @ w).sin() * 2 + (x @ w).cumsum(0)


def product(x, w):
    return (x @ w).sin()


def test_called_with_a_weight_and_then_with_a_computed_tensor():
    def step(compile, x, w):
        f = compile(twice)
        for computed in (w, w * 1, w):
            f(x, computed).float().sum().backward()

    check(step, leaf(4, 4), leaf(4, 4))


def test_called_with_a_view_made_under_no_grad():
    def step(compile, x, w):
        f = compile(twice)
        with torch.no_grad():
            view = w[:]
        for value in (w, view.requires_grad_()):
            f(x, value).float().sum().backward()
        return view

    check(step, leaf(4, 4), leaf(4, 4), allow_fallback=True)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_context_opened_around_later(is_enabled):
    def step(compile, x, w):
        f = compile(twice)
        f(x, w).float().sum().backward()
        with autocast(enabled=is_enabled):
            (f(x, w) + f(x, w).square()).float().sum().backward()
        f(x, w).float().sum().backward()

    report = check(step, leaf(4, 4), leaf(4, 4), allow_fallback=True)
    assert set(report.fallbacks) == (set() if is_enabled else OTHER_CACHE)


def test_first_cast_decides_for_all():
    def step(compile, x, w):
        f, g = compile(twice), compile(product)
        with autocast():
            outs = [f(x, w), product(x, w), g(x, w)]
        with autocast():
            outs += [product(x, w), g(x, w), f(x, w)]
        with autocast():
            outs += [g(x, w), f(x, w), product(x, w)]
        sum(out.float().sum() for out in outs).backward()
        return outs

    report = check(step, leaf(4, 4), leaf(4, 4), allow_fallback=True)
    assert set(report.fallbacks) == OTHER_CACHE


def test_cache_turned_off_inside():
    def step(compile, x, w):
        def f(x, w):
            with autocast(torch.float16, cache_enabled=False):
                return (x @ w).sin() * 2 + (x @ w).cumsum(0)

        f = compile(f)
        f(x, w).float().sum().backward()
        with autocast():
            out = f(x, w), product(x, w)
        sum(out).float().sum().backward()
        return out

    check(step, leaf(4, 4), leaf(4, 4))


def square(w):
    return F.linear(w, w), w @ w.t()


def untraceable(w):
    return F.linear(w.cumprod(0), w), F.linear(w, w).prod(0), w @ w.t()


@pytest.mark.parametrize("has_hook", [True, False])
@pytest.mark.parametrize("function", [square, untraceable, lambda w: (F.linear(w, w).tanh(), F.linear(w, w * 2))])
def test_higher_orders_share_copies(function, has_hook):
    """The formulas of several nodes use one copy, so their gradients add up in bfloat16. Found by the fuzzer."""

    def step(compile, w):
        outs = compile(function)(w)
        if has_hook:
            outs[0].register_hook(lambda grad: grad * 2)
        with autocast():
            (first,) = torch.autograd.grad([out.square().sum() for out in outs], w, create_graph=True)
            (second,) = torch.autograd.grad(first.square().mean(), w, create_graph=True)
            return first, second, torch.autograd.grad(second.square().mean(), w)

    report = check(step, leaf(8, 4), allow_fallback=function is untraceable)
    assert bool(report.fallbacks) == (function is untraceable)


def test_second_order_of_a_weight_and_of_a_computed_tensor():
    def step(compile, w):
        f = compile(square)
        for value in (w, w * 1, w):
            with autocast():
                (first,) = torch.autograd.grad([out.square().sum() for out in f(value)], value, create_graph=True)
                first.square().sum().backward()
        (first,) = torch.autograd.grad([out.square().sum() for out in f(w)], w, create_graph=True)
        first.square().sum().backward()

    check(step, leaf(8, 4))


def test_second_order_where_the_copy_has_another_dtype():
    def step(compile, w):
        out = compile(lambda w: F.linear(w, w))(w)
        with autocast(torch.float16):
            w @ w
            with autocast(enabled=True):
                (first,) = torch.autograd.grad(out.sum(), w, create_graph=True)
                return first

    report = check(step, leaf(4, 4), allow_fallback=True)
    assert report.eager.error is not None  # the formula's product meets two dtypes


@pytest.mark.parametrize("has_extension", [True, False])
def test_copy(has_extension, monkeypatch):
    if not has_extension:
        monkeypatch.setattr(native, "is_built", lambda: False)
    weight = torch.randn(3, 3, requires_grad=True)
    with autocast(enabled=False):
        first = cached_cast(weight, torch.float16)
        assert first.dtype == torch.float16 and same_bits(first, weight.half())
        assert cached_cast(weight, torch.float16) is first
        assert cached_cast(weight, torch.bfloat16) is first
        with autocast(torch.bfloat16):
            assert (weight @ weight).dtype == torch.float16
    with autocast(enabled=False):
        assert cached_cast(weight, torch.bfloat16).dtype == torch.bfloat16
        assert not torch.is_autocast_enabled("cpu")


def test_a_weight_that_is_written_into_before_it_is_cast():
    """The copy was taken when the region began: an average of weights that the function itself updates came a call late."""

    def step(compile, x, weight, average):
        def f(x):
            with torch.no_grad():
                average.mul_(0.9).add_(weight, alpha=0.1)
            return F.linear(x.relu(), average)

        compiled = compile(f)
        with autocast():
            results = [compiled(x) for _ in range(3)]
        return results, torch.autograd.grad(results[-1].float().sum(), average)

    report = check(step, leaf(3, 4), leaf(4, 4), leaf(4, 4), allow_fallback=True)
    assert report.fallbacks == {"weight written into before autocast casts it": 3}


def test_a_weight_that_is_written_into_after_it_was_cast():
    """Eager goes on with the old copy."""

    def step(compile, x, weight):
        def f(x):
            before = F.linear(x, weight)
            with torch.no_grad():
                weight.mul_(0.5)
            return before, F.linear(x.relu(), weight)

        compiled = compile(f)
        with autocast():
            return compiled(x), compiled(x)

    check(step, leaf(3, 4), leaf(4, 4))
