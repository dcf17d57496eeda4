"""The oracle sees every kind of difference: each wrong "compiler" below is caught, and a right one is not."""

from __future__ import annotations

import pytest
import torch

from tests.compilers import DYNAMO, Compiler
from tests.oracle import check, compare, leaf


def step(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    y.sum().backward()
    return y


def found(wrap, step=step) -> str:
    compiler = Compiler("wrong", lambda function, **options: wrap(function))
    return " ".join(compare(step, leaf(3, 4), leaf(4, 4), compiler=compiler).differences)


def test_dynamo_is_eager():
    check(step, leaf(3, 4), leaf(4, 4), compiler=DYNAMO)


def test_value():
    assert "values differ" in found(lambda f: lambda *args: f(*args) + 1e-7)


def test_dtype():
    assert "dtype is" in found(lambda f: lambda *args: f(*args).double())


def test_strides():
    assert "stride is" in found(lambda f: lambda *args: f(*args).t().contiguous().t())


def test_missing_gradient():
    assert "input[0].grad: missing" in found(lambda f: lambda x, w: f(x.detach(), w))


def test_mutated_input():
    def wrap(f):
        def wrong(x, w):
            x.data.mul_(1)
            with torch.no_grad():
                w.add_(0)
            return f(x, w)

        return wrong

    assert "input[1]: version is 1, eager: 0" in found(wrap)


def test_aliased_output():
    def views(compile, x, w):
        return compile(lambda x: x.view(-1))(x)

    assert "in the storage of nothing before it, eager: input[0]" in found(lambda f: lambda x: f(x).clone(), views)


def test_same_object():
    def returns_input(compile, x, w):
        return compile(lambda x: x)(x)

    text = found(lambda f: lambda x: f(x).view_as(x), returns_input)
    assert "the same object as nothing before it, eager: input[0]" in text


def test_generator_state():
    def wrap(f):
        return lambda *args: (torch.rand(1), f(*args))[1]

    assert "torch generator after the step differs" in found(wrap)


def test_error():
    def wrap(f):
        def wrong(*args):
            raise ValueError("no")

        return wrong

    assert "raises ValueError: no" in found(wrap)


def test_negative_zero_and_nan():
    def zero(compile, x, w):
        return compile(lambda x: x * 0 * -1)(x.detach().abs())

    def nan(compile, x, w):
        return compile(lambda x: x * float("nan"))(x.detach())

    assert found(lambda f: lambda x: f(x).abs(), zero) == ""  # torch.equal holds 0 and -0 equal
    assert found(lambda f: f, nan) == ""


def test_fallback_is_an_error_unless_allowed(monkeypatch):
    monkeypatch.setattr(Compiler, "fallbacks", lambda self: {"reason": 1})
    with pytest.raises(AssertionError, match="reason"):
        check(step, leaf(3, 4), leaf(4, 4), compiler=DYNAMO)
    check(step, leaf(3, 4), leaf(4, 4), compiler=DYNAMO, allow_fallback=True)
