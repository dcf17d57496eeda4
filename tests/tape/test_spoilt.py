"""What is written into after a node saved it: backward raises where eager does, and the rest is compiled."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.oracle import check, constant, leaf


def spoilt_and_not(x, w):
    hidden = torch.exp(x * 2)
    spoilt = hidden.sin()
    hidden.add_(1)
    return spoilt, (x * w).tanh()


@pytest.mark.parametrize("retain_graph", [False, True])
def test_backward_raises_where_eager_does(retain_graph):
    def step(compile, x, w):
        spoilt, fine = compile(spoilt_and_not)(x, w)
        fine.sum().backward(retain_graph=retain_graph)
        spoilt.sum().backward()

    report = check(step, leaf(4), leaf(4))
    assert report.eager.error is not None and "modified by an inplace operation" in str(report.compiled.error)


@pytest.mark.parametrize("create_graph", [False, True])
def test_of_several_the_error_names_the_first_that_is_read(create_graph):
    """Under create_graph it named the first that was saved."""

    def step(compile, x):
        out = compile(lambda x: x.tanh().relu_().relu_())(x)
        return torch.autograd.grad(out.sum(), x, create_graph=create_graph)

    check(step, leaf(4), compare_messages=True)


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_that_do_not_need_it(create_graph):
    """Under create_graph it was asked for its history, and there is none."""

    def step(compile, x, scale):
        @compile
        def model(x):
            return x.tanh().relu_() * scale

        return torch.autograd.grad(model(x).square().sum(), scale, create_graph=create_graph)

    report = check(step, leaf(4), leaf(1), allow_fallback=True)
    assert report.eager.error is None


def changing_what_was_saved(make, dtype=torch.float32):
    def step(compile, x):
        @compile
        def square(x):
            y = make(x)
            z = y * y
            with torch.no_grad():
                y.mul_(2)
            return z

        square(x.to(dtype)).abs().sum().backward()

    return step


@pytest.mark.parametrize("make", [torch.exp, torch.sin, lambda x: torch.stack([x, x]).sum(0), lambda x: x @ torch.ones(4, 4)])
def test_words_of_the_error(make):
    check(changing_what_was_saved(make), leaf(4), compare_messages=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128])
def test_words_of_the_error_about_a_tensor_of_another_dtype(dtype):
    """Eager's words are ``torch.HalfTensor``, and ``CPUBFloat16Type``."""
    report = check(changing_what_was_saved(torch.exp, dtype), leaf(4), compare_messages=True)
    assert report.eager.error is not None


def test_words_of_the_error_about_a_leaf():
    def step(compile, x):
        @compile
        def square(x):
            z = x * x
            with torch.no_grad():
                x.mul_(2)
            return z

        square(x).sum().backward()

    check(step, leaf(4), compare_messages=True)


def test_words_of_the_error_about_sizes_that_change():
    """They stood there as symbols: [s77, 4]."""

    def step(compile, x):
        @compile
        def square(x):
            y = x.sin()
            z = y * y
            with torch.no_grad():
                y.mul_(2)
            return z

        for size in (3, 4):
            square(x[:size])
        square(x).sum().backward()

    check(step, leaf(5, 4), compare_messages=True, allow_fallback=True)


@pytest.mark.parametrize("name", [lambda t: t.view(2, 2), lambda t: t.detach(), lambda t: t[2:], lambda t: t.data])
def test_a_saved_input_is_written_into_through_another(name):
    """Eager raises, as they share a version; but for ``data``, which has its own."""

    def step(compile, x, t):
        other = name(t)

        @compile
        def multiply(x, t):
            y = x.sin() * t
            other.mul_(2)
            return y

        y = multiply(x, t)
        y.sum().backward()
        return y

    check(step, leaf(4), constant(4), compare_messages=True, allow_fallback=True)


def test_a_backward_that_does_not_get_there():
    def step(compile, x, w):
        spoilt, fine = compile(spoilt_and_not)(x, w)
        return spoilt, torch.autograd.grad(fine.sum(), (x, w))

    check(step, leaf(4), leaf(4))


def test_only_one_input_needs_what_is_spoilt():
    """One segment: the product saved both factors, of which one was written into."""

    def step(compile, x, w):
        @compile
        def f(x, w):
            factor = w.exp().detach()
            y = x * factor * w
            factor.mul_(2)
            return y.sin()

        results = []
        for wanted in (w, x):
            try:
                results += torch.autograd.grad(f(x, w).sum(), wanted)
            except RuntimeError as error:
                results.append(type(error).__name__)
        return results

    check(step, leaf(4), leaf(4))


@pytest.mark.parametrize("wanted", ["w", "x"])
def test_create_graph(wanted):
    def step(compile, x, w):
        @compile
        def f(x, w):
            factor = w.exp().detach()
            y = x * factor * w
            factor.mul_(2)
            return y.sin()

        (slope,) = torch.autograd.grad(f(x, w).sum(), w if wanted == "w" else x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (x, w))

    check(step, leaf(4), leaf(4), allow_fallback=True)


def test_input_that_is_written_into_without_recording():
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = (x * w).sin()
            with torch.no_grad():
                w.add_(1)
            return y, x.cos()

        y, z = f(x, w)
        z.sum().backward()
        y.sum().backward()

    report = check(step, leaf(4), leaf(4))
    assert report.eager.error is not None


def test_result_that_is_returned_too():
    """The tensor itself goes on, with its new history."""

    def step(compile, x, w):
        @compile
        def f(x, w):
            hidden = torch.exp(x * w)
            y = hidden.sin()
            hidden.mul_(w)
            return y, hidden

        y, hidden = f(x, w)
        results = [y, hidden, hidden._version]
        try:
            hidden.sum().backward()
        except RuntimeError as error:
            results.append(type(error).__name__)
        return results

    check(step, leaf(4), leaf(4))


@pytest.mark.parametrize("dynamic", [True, False])
def test_under_checkpoint_nothing_is_checked(dynamic):
    def step(compile, x, w):
        f = compile(spoilt_and_not, dynamic=dynamic)
        spoilt, fine = checkpoint(f, x, w, use_reentrant=False)
        (spoilt + fine).sum().backward()

    check(step, leaf(4), leaf(4), allow_fallback=True)
