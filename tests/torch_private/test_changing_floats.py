"""A Python float that changes from call to call: everything that is done with it is Python's and eager's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gradc
from gradc import FallbackError
from tests.compilers import COMPILERS
from tests.oracle import check, leaf

FLOATS = (0.1, 0.2, 0.3, 0.25, 0.7, 0.0, 0.9, 1.0, 0.15, 0.45, 0.6)  # more than Dynamo compiles one function for


def over(function: Callable[..., Tensor], floats: tuple[float, ...] = FLOATS) -> Any:
    """A step that calls ``function``, compiled, with one float after another; gradients and all."""

    def step(compile: Any, x: Tensor) -> Any:
        call, found = compile(function), []
        for value in floats:
            torch.manual_seed(0)
            out = call(x, value)
            (grad,) = torch.autograd.grad(out.sum(), x)
            found.append((out, grad))
        return found

    return step


TAKING_SCALARS = {
    "mul": lambda x, s: (x * s).sin(),
    "reflected": lambda x, s: s - x / (s + 1),
    "alpha": lambda x, s: torch.add(x.sin(), x, alpha=s) - torch.sub(x, x.exp(), alpha=s),
    "pow": lambda x, s: (x.abs() + 1) ** s + s ** x.sin(),
    "clamp": lambda x, s: x.sin().clamp(-s, s).exp(),
    "lerp": lambda x, s: x.lerp(x.exp(), s),
    "addcmul": lambda x, s: torch.addcmul(x, x.sin(), x.cos(), value=s),
    "full": lambda x, s: x * torch.full((3,), s) + torch.tensor(s),
    "compare": lambda x, s: torch.where(x > s, x.sin(), x * s),
    "dropout": lambda x, s: F.dropout(x.exp(), s) * 2,
    "leaky_relu": lambda x, s: F.leaky_relu(x.sin(), s).cos(),
    "layer_norm": lambda x, s: F.layer_norm(x, (3,), eps=s + 1e-5),
    "label_smoothing": lambda x, s: F.cross_entropy(x, x.detach().softmax(-1), label_smoothing=s),
}


DECIDED = "float that decides what is called"  # 1 as alpha, 0 as exponent, 0 and 1 in dropout: one call of those above, or two


@pytest.mark.parametrize("name", TAKING_SCALARS)
def test_ops_that_take_scalars(name):
    report = check(over(TAKING_SCALARS[name]), leaf(3, 3), allow_fallback=name in ("alpha", "pow", "dropout"))
    assert not report.fallbacks.keys() - {DECIDED} and report.fallbacks.get(DECIDED, 0) <= 2


BY_PYTHON = {
    "arithmetic": lambda x, s: x * (1 - s) + x.exp() * (s**2 * 3.0 / 7),
    "truth": lambda x, s: x * 2 if s else x.sin(),
    "branch": lambda x, s: x * s if 0.2 < s <= 0.6 else x + s,
    "not": lambda x, s: x * 2 if not s else x * 3,
    "bool": lambda x, s: x * 2 if bool(s) is True else x * 3,
    "a comparison that is kept": lambda x, s: x * [2, 3][s < 0.5],
    "min and max": lambda x, s: x * max(0.2, min(s, 0.7)),
    "math": lambda x, s: x * math.sqrt(s) + math.cos(s),
    "text": lambda x, s: x * len(f"{s}"),
    "key": lambda x, s: x * {0.1: 2.0}.get(s, 3.0),
    "int": lambda x, s: x * int(10 * s),
    "round": lambda x, s: x * round(s, 1),
    "container": lambda x, s: x.cos() * [s, s + s][1] * {"a": s}["a"],
    "default argument": lambda x, s: (lambda y, t=s: y * t)(x.sin()),
}


@pytest.mark.parametrize("name", BY_PYTHON)
def test_what_python_does_with_it(name):
    check(over(BY_PYTHON[name]), leaf(3, 3))


def test_a_branch_on_a_product_is_eagers():
    """(s * 0.1) * 3.0 was s * 0.30000000000000004 to Dynamo, and the other branch was taken."""
    s = 0.5112747213686085
    threshold = (s * 0.1) * 3.0
    assert s * (0.1 * 3.0) != threshold

    def branch(x: Tensor, s: float) -> Tensor:
        return x * 2 if (s * 0.1) * 3.0 == threshold else x * 3

    check(over(branch, (0.99, 0.98, s, 0.1)), leaf(3))


class Tempered(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.temperature = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) / self.temperature).softmax(-1).log()


def test_an_attribute_of_a_module():
    def step(compile: Any, x: Tensor) -> Any:
        torch.manual_seed(0)
        module = Tempered()
        call, found = compile(module), []
        for value in FLOATS[:5]:
            module.temperature = value
            out = call(x)
            out[:, 0].sum().backward()
            found.append((out, module.linear.weight.grad.clone()))
        return found

    check(step, leaf(2, 3))


def test_a_variable_of_the_function_around():
    def step(compile: Any, x: Tensor) -> Any:
        weight = 0.1
        call, found = compile(lambda x: (x.sin() * weight).exp()), []
        for value in FLOATS:
            weight = value
            found.append(torch.autograd.grad(call(x).sum(), x))
        return found

    check(step, leaf(3))


def test_what_python_decides_by_it_is_refused_under_fullgraph():
    call = gradc.compile(lambda x, s: x.sin() if s < 1 else x.cos(), fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    call(x, 0.1)
    with pytest.raises(FallbackError, match="gradc: float that changes"):
        call(x, 0.2)


def test_each_call_in_which_python_decides_is_counted():
    gradc.counters.clear()
    call, x = gradc.compile(lambda x, s: x.sin() if s < 1 else x.cos()), torch.ones(3, requires_grad=True)
    for number in range(5):
        call(x, 0.1 * number)
    assert gradc.counters["uncompiled"] == {"gradc: float that changes": 4} and not gradc.counters["fallbacks"]


WHOLE = ("mul", "reflected", "clamp", "lerp", "addcmul", "leaky_relu", "layer_norm")
CALCULATED = ("arithmetic", "min and max", "math", "container", "default argument")


@pytest.mark.parametrize(
    "function", [*map(TAKING_SCALARS.get, WHOLE), *map(BY_PYTHON.get, CALCULATED)], ids=[*WHOLE, *CALCULATED]
)
def test_it_is_an_input(function):
    """One graph for the float as a constant, one for all others; nothing runs outside."""
    gradc.counters.clear()
    call, x = gradc.compile(function, fullgraph=True), torch.ones(3, 3, requires_grad=True)
    for value in FLOATS:
        call(x, value).sum().backward()
    assert gradc.counters["stats"]["unique_graphs"] == 2
    assert not gradc.counters["uncompiled"] and not gradc.counters["fallbacks"]


STRANGE = (0.5, 0.25, -0.0, 0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, -1.0, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_strange_floats(dtype):
    check(over(lambda x, s: (x * s + x / (2 - s)).abs() - s * 2, STRANGE), leaf(4, dtype=dtype))


def test_a_zero_is_not_a_negative_zero():
    """The guard on the constant 0.0 let -0.0 pass."""

    class Scaled(torch.nn.Module):
        scale = 0.0

        def forward(self, x: Tensor, s: float) -> Tensor:
            return torch.atan2(x * s, -x * self.scale)

    def step(compile: Any, x: Tensor) -> Any:
        module = Scaled()
        call, found = compile(module), []
        for value in (0.0, -0.0, 0.0):
            found.append(call(x, value))
            module.scale = value
            found.append(call(x, value))
        return found

    check(step, lambda: torch.ones(3))


def test_numbers_of_other_types():
    """An int, a bool or a number of NumPy's is another number than the float that equals it: an integer tensor shows it."""
    numbers: tuple[Any, ...] = (0.5, 1.5, 1, True, 2.0, numpy.float64(0.5), numpy.float32(2.5), 0.1, 2)

    def step(compile: Any, x: Tensor, n: Tensor) -> Any:
        call = compile(lambda x, n, s: ((x * s).sin(), n * s, n + 2 * s))
        return [call(x, n, number) for number in numbers]

    check(step, leaf(3), lambda: torch.arange(3))


def test_a_float_that_python_does_not_take_raises_as_in_eager():
    def step(compile: Any, x: Tensor) -> Any:
        written = torch.zeros(3)

        def divide(x: Tensor, s: float) -> Tensor:
            written.add_(1)
            return x * (1 / s)

        call, found = compile(divide), []
        for value in (0.5, 0.25, 0.0):
            try:
                found.append(call(x, value))
            except ZeroDivisionError as error:
                found.append(str(error))
        return found, written

    check(step, leaf(3), allow_fallback=True)


def test_a_float_that_is_calculated_and_returned():
    def step(compile: Any, x: Tensor) -> Any:
        call = compile(lambda x, s: (x * s, 1 - s * 3, {"half": s / 2, "itself": s}, math.exp(s)))
        return [call(x, value) for value in FLOATS[:5]]

    check(step, leaf(3))


class Annealed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.beta = 0.1

    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        before = self.beta
        self.beta = min(1.0, self.beta * 1.5 + 0.01)
        loss = (self.weight * x * before).sum() * self.beta
        self.beta *= 0.99
        return loss, before


def test_a_float_that_the_module_changes():
    def step(compile: Any, x: Tensor) -> Any:
        module = Annealed()
        call, found = compile(module), []
        for _ in range(9):
            loss, before = call(x)
            loss.backward()
            found.append((loss, before, module.beta, module.weight.grad.clone()))
        return found

    check(step, leaf(3))


def test_across_a_graph_break():
    def step(compile: Any, x: Tensor) -> Any:
        seen: list[float] = []

        def function(x: Tensor, s: float) -> Tensor:
            twice = s * 2
            y = x * twice
            if y.sum() > 0:  # ends the graph
                seen.append(twice)
            return y.sin() * twice * s

        call = compile(function)
        return [torch.autograd.grad(call(x, value).sum(), x) for value in FLOATS], seen

    check(step, leaf(3))


def test_in_place_and_without_gradients():
    """The decay of an exponential moving average, as it is usually written."""

    def step(compile: Any) -> Any:
        torch.manual_seed(0)
        average, weight = torch.randn(4), torch.randn(4)

        @torch.no_grad()
        def update(average: Tensor, weight: Tensor, decay: float) -> None:
            average.mul_(decay).add_(weight, alpha=1 - decay)

        call = compile(update)
        for number in range(8):
            call(average, weight, min(0.999, (1 + number) / (10 + number)))
        return average

    check(step)


def test_sizes_that_change_too():
    def step(compile: Any) -> Any:
        torch.manual_seed(0)
        weight = torch.randn(4, 4, requires_grad=True)
        call = compile(lambda x, w, s: ((x @ w) * s).tanh() / (1 + s))
        found = []
        for number, value in enumerate(FLOATS):
            call(torch.randn(number + 2, 4), weight, value).sum().backward()
            found.append(weight.grad.clone())
        return found

    check(step)


def test_under_autocast():
    def step(compile: Any, x: Tensor, w: Tensor) -> Any:
        call, found = compile(lambda x, w, s: (x @ w * s).softmax(-1) * s), []
        for value in FLOATS[:6]:
            with torch.autocast("cpu", torch.bfloat16):
                out = call(x, w, value)
            found.append((out, *torch.autograd.grad(out.float().sum(), (x, w))))
        return found

    check(step, leaf(3, 4), leaf(4, 5))


def test_derivatives_of_derivatives():
    """A derivative is a region with the same floats for inputs, and so are its own."""

    def step(compile: Any, x: Tensor) -> Any:
        call, found = compile(lambda x, s: (x.sin() * s).exp() / s - (x.abs() + 1) ** s), []
        for value in FLOATS[:5]:
            (first,) = torch.autograd.grad(call(x, value).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad((first * value).sum(), x, create_graph=True)
            found.append((first, second, *torch.autograd.grad(second.sum(), x)))
        return found

    check(step, leaf(3))


def test_two_calls_before_the_backward():
    """Each call keeps the value that it was given."""

    def step(compile: Any, x: Tensor) -> Any:
        call = compile(lambda x, s: (x.sin() * s).exp())
        return torch.autograd.grad(sum(call(x, value).sum() for value in FLOATS), x)

    check(step, leaf(3))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_inside_a_checkpoint(use_reentrant):
    def step(compile: Any, x: Tensor) -> Any:
        part = lambda x, s: (x.sin() * s).exp()
        call = compile(lambda x, s: checkpoint(part, x * s, s, use_reentrant=use_reentrant))
        return [torch.autograd.grad(call(x, value).sum(), x) for value in FLOATS[:4]]

    check(step, leaf(3), allow_fallback=True)


def test_captured_backward_passes():
    def step(compile: Any, x: Tensor) -> Any:
        call, found = compile(lambda x, s: (x.sin() * s).exp() - x * s), []
        for value in FLOATS:
            y = call(x, value) * x
            (y.sum() * value).backward()
            found.append(x.grad.clone())
        return found

    check(step, leaf(3), compiler=COMPILERS["gradc_captured"], allow_fallback=True)


def over_ints(function: Callable[..., Any], ints: Sequence[int] = range(2, 14)) -> Any:
    def step(compile: Any, x: Tensor) -> Any:
        call, found = compile(function), []
        for number in ints:
            out = call(x, number)
            found.append((out, *torch.autograd.grad(out[0].sum(), x)))
        return found

    return step


def test_what_python_calculates_of_an_int_that_changes():
    """n / 7 * 0.3 / 7 was one expression of Dynamo's, which rounded otherwise: four of ten values differed."""
    schedule = lambda x, n: (x * (n / 7 * 0.3 / 7 * 0.9 + n * 0.1 * 3), (n * 0.1) * 3.0, 1 - 0.999**n, x / max(1.0, n / 10))
    check(over_ints(schedule), leaf(3, dtype=torch.float64))


def test_sizes_that_python_calculates_by_floats():
    """Such a float is exact as Dynamo's symbol: it does not end the graph."""
    gradc.counters.clear()

    def halves(x: Tensor, n: int) -> tuple[Tensor, int]:
        half = int(n / 2)
        return x[:half].sin() / math.sqrt(n) + x.new_ones(math.ceil(n / 2) - half).sum() / 3, half

    check(over_ints(halves), leaf(20))
    call = gradc.compile(halves, fullgraph=True)
    for number in range(2, 9):
        call(torch.ones(20), number)
    assert not gradc.counters["uncompiled"] and not gradc.counters["fallbacks"]


def test_a_float_that_is_calculated_for_nothing():
    def step(compile: Any, x: Tensor) -> Any:
        call = compile(lambda x, s, n: (x.sin(), x * s * 0)[n])
        return [call(x, value, 0) for value in FLOATS]

    check(step, leaf(3))


def test_with_a_gradient_inside():
    """The floats are no inputs of the region's own: where its inputs stand is another question there."""

    def step(compile: Any, x: Tensor, w: Tensor) -> Any:
        def penalised(s: float, x: Tensor, w: Tensor) -> Tensor:
            y = (x * s * w).tanh().sum()
            (grad,) = torch.autograd.grad(y, x, create_graph=True)
            return y + s * grad.pow(2).sum()

        call, found = compile(penalised), []
        for value in FLOATS[:5]:
            found.append(torch.autograd.grad(call(value, x, w), w))
        return found

    check(step, leaf(3), leaf(3), allow_fallback=True)
