"""gradc.check hears the hooks of a step: in which order they run, and what they are given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc.parity.differences import Kind, Order


class Two(nn.Module):
    """A step with two backward passes, one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        self.is_swapped = False
        for parameter in (self.a, self.b):
            parameter.register_hook(lambda grad: grad * 2)
            parameter.register_post_accumulate_grad_hook(lambda leaf: None)

    @torch.compiler.disable
    def forward(self, x: Tensor) -> None:
        for parameter in (self.b, self.a) if self.is_swapped else (self.a, self.b):
            (x * parameter).sum().backward()


def swapping(step: Two) -> Two:
    step.is_swapped = True
    return step


def test_another_order_of_hooks_is_a_difference_in_words() -> None:
    report = gradc.check(Two(), torch.ones(2), against=swapping)
    (found,) = report.differences
    assert (found.name, found.eager, found.compiled, found.kind) == ("order of hooks", "4 calls", "4 calls", Kind.WRONG)
    assert found.why == "the hook on a ran before the hook on b in eager, and after it compiled"
    assert report.location is not None and report.location.cause == found.why


def without_hooks_on_b(step: Two) -> Two:
    hooks: Any = step.b._post_accumulate_grad_hooks
    hooks.clear()
    return step


def test_a_hook_that_does_not_run() -> None:
    found = {each.name: each for each in gradc.check(Two(), torch.ones(2), against=without_hooks_on_b).differences}
    assert found["order of hooks"].why == "the hook behind the gradient of b did not run, in eager once"
    assert found["what the hook behind the gradient of b got"].compiled == "nothing"


def test_what_a_hook_gets() -> None:
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(lambda grad: torch.ones_like(grad))

    def step(x: Tensor) -> None:
        (x * weight).sum().backward()

    report = gradc.check(step, torch.ones(3), against=lambda step: lambda x: step(2 * x))
    assert [found.name for found in report.differences] == ["what the hook on weight got"]  # its gradient is the same


def test_hooks_of_modules_and_optimizers_and_what_is_compiled_stays() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    heard: list[str] = []
    model[0].weight.register_hook(lambda grad: heard.append("weight"))
    model[0].register_full_backward_hook(lambda *args: heard.append("backward"))
    model[2].register_full_backward_pre_hook(lambda *args: heard.append("before"))
    optimizer.register_step_pre_hook(lambda *args: heard.append("step"))
    optimizer.register_step_post_hook(lambda *args: heard.append("stepped"))
    places = [model[0].weight._backward_hooks, model[0]._backward_hooks, model[2]._backward_pre_hooks]
    before = [dict(place or {}) for place in places]
    x = torch.randn(3, 2, requires_grad=True)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()

    report = gradc.check(step, steps=2)
    assert report.ok and report.is_conclusive and heard[:5] == ["before", "weight", "backward", "step", "stepped"]
    assert [dict(place or {}) for place in places] == before


@pytest.mark.parametrize(
    ("eager", "compiled", "why"),
    [
        ("ab", "ba", "the a ran before the b in eager, and after it compiled"),
        ("aab", "abb", "the a ran once, in eager twice"),
        ("a", "abbb", "the b ran 3 times, in eager not at all"),
    ],
)
def test_the_first_difference_of_two_orders(eager: str, compiled: str, why: str) -> None:
    assert Order(tuple(eager)).first_difference(Order(tuple(compiled))) == why
