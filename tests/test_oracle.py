"""The oracle sees every kind of difference: each wrong "compiler" below is caught, and a right one is not."""

from __future__ import annotations

import pytest
import torch

from tests.compilers import DYNAMO, EAGER, Compiler
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


class Track(torch.nn.Module):
    """Has a parameter, and a buffer that its forward writes into."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x):
        self.last.copy_(x.detach())
        return x * self.scale


PLACES = {
    "result": lambda track, x, y: y,
    "input[1]": lambda track, x, y: x,
    "input[1].grad": lambda track, x, y: x.grad,
    "input[0].scale": lambda track, x, y: track.scale,
    "input[0].scale.grad": lambda track, x, y: track.scale.grad,
    "input[0].last": lambda track, x, y: track.last,
}
CHANGES = {
    "a bit": lambda t: torch.nextafter(t, torch.full_like(t, 9)),
    "the sign of a zero": lambda t: -t,
    "a NaN for a number": lambda t: t + float("nan"),
}


def said(place, number, change):
    """What the oracle says of a step that leaves ``number`` at ``place``, and ``change`` of it where it is compiled."""

    def step(compile, track, x):
        y = compile(track)(x)
        y.sum().backward()
        tensor = PLACES[place](track, x, y).data
        tensor.fill_(number)
        if compile.name == "wrong":
            tensor.copy_(change(tensor))
        return y

    return compare(step, Track, leaf(3), compiler=Compiler("wrong", EAGER.wrap)).differences


@pytest.mark.parametrize("place", PLACES)
def test_every_bit_in_every_place(place):
    for change, numbers in (("a bit", (1.0,)), ("the sign of a zero", (0.0, -0.0)), ("a NaN for a number", (0.0, 1.0))):
        for number in numbers:
            (difference,) = said(place, number, CHANGES[change])
            assert difference.startswith(f"{place}: values differ"), difference


@pytest.mark.parametrize("place", PLACES)
def test_any_nan_is_any_other(place):
    other_nan = torch.tensor(-1, dtype=torch.int32).view(torch.float32)
    assert not said(place, float("nan"), lambda t: other_nan.expand(3))
    assert said(place, float("nan"), torch.zeros_like)


@pytest.mark.parametrize("number, other", [(0.0, -0.0), (1, 1.0), (1, True), (0.0, float("nan"))])
def test_numbers(number, other):
    def step(compile):
        return other if compile.name == "wrong" else number

    assert compare(step, compiler=Compiler("wrong", EAGER.wrap)).differences
    assert not compare(lambda compile: float("nan"), compiler=Compiler("wrong", EAGER.wrap)).differences


def test_sparse_gradients():
    def step(compile, table):
        torch.nn.functional.embedding(torch.tensor([1, 1]), table, sparse=True).sum().backward()
        if compile.name == "wrong":
            table.grad = table.grad.coalesce()

    text = " ".join(compare(step, leaf(3, 2), compiler=Compiler("wrong", EAGER.wrap)).differences)
    assert "input[0].grad: is_coalesced is True, eager: False" in text


def test_close_will_do_for_compilers_that_round_otherwise():
    def step(compile, x):
        return compile(lambda x: x * 3)(x.detach())

    def found(change):
        wrong = Compiler("wrong", lambda function, **options: lambda x: change(function(x)), is_bitwise=False)
        return compare(step, leaf(3), compiler=wrong).differences

    assert not found(lambda t: t * (1 + 1e-6)) and not found(lambda t: t)
    assert found(lambda t: t * 1.1) and found(lambda t: t + float("nan"))


def test_fallback_is_an_error_unless_allowed(monkeypatch):
    monkeypatch.setattr(Compiler, "fallbacks", lambda self: {"reason": 1})
    with pytest.raises(AssertionError, match="reason"):
        check(step, leaf(3, 4), leaf(4, 4), compiler=DYNAMO)
    check(step, leaf(3, 4), leaf(4, 4), compiler=DYNAMO, allow_fallback=True)
