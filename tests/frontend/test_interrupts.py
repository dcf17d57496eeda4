"""Ctrl-C while something is compiled: it comes through at once, and the next call compiles as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradc
from gradc.backends import lookup_backend
from gradc.bits import same_bits
from gradc.journal import is_heard
from tests.executor.test_faults import interrupt


class Press:
    """Ctrl-C at the call of this number, from now on; 0: never."""

    number = 0

    def __call__(self) -> None:
        self.number -= 1
        if self.number == 0:
            interrupt()


PRESS = Press()


@torch.library.custom_op("gradc_interrupts::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return 2 * x


@double.register_fake
def _(x: Tensor) -> Tensor:
    PRESS()  # Dynamo calls it, and gradc when it records
    return torch.empty_like(x)


double.register_autograd(lambda ctx, grad: double(grad))


def lower(program: Any) -> Callable[..., Any]:
    PRESS()
    return lookup_backend("replay")(program)


gradc.register_backend("pressing", lower)


def step(x: Tensor) -> Tensor:
    return (double(x).sin() * x).sum()


def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    function(x).backward()
    assert x.grad is not None
    return x.grad


def counts(compiled: Callable[[Tensor], Tensor]) -> tuple[int, int, int]:
    """Backwards compiled, fallbacks and graph breaks of two calls."""
    gradc.counters.clear()
    assert same_bits(gradient(compiled), gradient(compiled))
    found = gradc.counters
    return found["aot"]["backward_compiles"], found["fallbacks"].total(), found["uncompiled"].total()


@pytest.mark.parametrize("number", range(1, 8))
def test_the_next_call_is_compiled(number: int) -> None:
    """Ctrl-C can be pressed seven times: in the fake kernel, and where forward and backward are lowered."""
    gradc.reset()
    expected, counted = gradient(step), counts(gradc.compile(step, backend="pressing"))
    gradc.reset()
    compiled = gradc.compile(step, backend="pressing")
    PRESS.number = number
    try:
        with pytest.raises(KeyboardInterrupt):
            gradient(compiled)
    finally:
        is_pressed, PRESS.number = PRESS.number == 0, 0
    assert is_pressed
    assert counted[1:] == (0, 0) and counts(compiled) == counted and same_bits(gradient(compiled), expected)


weight = torch.ones(5, requires_grad=True)
weight.register_hook(lambda grad: grad * 2)


def training_step() -> Tensor:
    with torch.no_grad():
        weight.add_(1)
    (weight * 3).sum().backward()
    PRESS()
    return weight.detach()


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    ("tool", "puts_back"),
    [
        (lambda folder: gradc.check(training_step), True),
        (lambda folder: gradc.report(folder / "report.html", training_step, steps=1), True),
        (lambda folder: gradc.explain(training_step)(), False),
        (lambda folder: gradc.programs(training_step)(), False),
    ],
    ids=["check", "report", "explain", "programs"],
)
def test_ctrl_c_in_a_tool_leaves_everything_as_it_was(
    tool: Callable[[Any], Any], puts_back: bool, number: int, tmp_path: Any
) -> None:
    assert weight._backward_hooks is not None
    weight.grad = None
    hooks, values, real = dict(weight._backward_hooks), weight.detach().clone(), torch.compile
    PRESS.number = number
    try:
        with pytest.raises(KeyboardInterrupt):
            while PRESS.number > 0:
                tool(tmp_path)
    finally:
        PRESS.number = 0
    assert torch.compile is real and dict(weight._backward_hooks) == hooks
    assert not is_heard("graphs") and lookup_backend("eager") is lookup_backend("eager")  # nobody looks on
    assert [*tmp_path.iterdir()] == []
    assert not puts_back or (same_bits(weight.detach(), values) and weight.grad is None)
    assert gradc.check(training_step).ok
