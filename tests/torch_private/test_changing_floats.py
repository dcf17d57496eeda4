"""A Python float that changes from call to call: everything that is done with it is Python's and eager's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gradc
from gradc import FallbackError
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


@pytest.mark.parametrize("name", TAKING_SCALARS)
def test_ops_that_take_scalars(name):
    check(over(TAKING_SCALARS[name]), leaf(3, 3))


def test_an_op_in_place():
    """The call with the float runs between two graphs; the second writes into what it was given, and that is eager's."""
    report = check(over(lambda x, s: x.sin().mul_(s).add_(x)), leaf(3), allow_fallback=True)
    assert set(report.fallbacks) <= {"input mutated in place with gradient recording"}


BY_PYTHON = {
    "arithmetic": lambda x, s: x * (1 - s) + x.exp() * (s**2 * 3.0 / 7),
    "truth": lambda x, s: x * 2 if s else x.sin(),
    "branch": lambda x, s: x * s if 0.2 < s <= 0.6 else x + s,
    "min and max": lambda x, s: x * max(0.2, min(s, 0.7)),
    "math": lambda x, s: x * math.sqrt(s) + math.cos(s),
    "text": lambda x, s: x * len(f"{s}"),
    "key": lambda x, s: x * {0.1: 2.0}.get(s, 3.0),
    "int": lambda x, s: x * int(10 * s),
    "round": lambda x, s: x * round(s, 1),
    "container": lambda x, s: x.cos() * sum([s, s, s]) * {"a": s}["a"],
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


def test_under_fullgraph_it_is_refused():
    call = gradc.compile(lambda x, s: (x * s).sin(), fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    call(x, 0.1)
    with pytest.raises(FallbackError, match="gradc: float that changes"):
        call(x, 0.2)


def test_each_call_is_counted():
    gradc.counters.clear()
    call, x = gradc.compile(lambda x, s: (x.sin() * s).exp()), torch.ones(3, requires_grad=True)
    for number in range(5):
        call(x, 0.1 * number)
    assert gradc.counters["uncompiled"] == {"gradc: float that changes": 4} and not gradc.counters["fallbacks"]
