"""Arguments that are written into while gradients are recorded: eager does that, between two graphs."""

from __future__ import annotations

import operator

import pytest
import torch

import gradc
from tests.oracle import check, constant, leaf

WRITES = {
    "method": lambda x, w: x.mul_(w.sin()),
    "item": lambda x, w: x.__setitem__(0, w.sum()),
    "view": lambda x, w: x.view(-1)[1:].add_(w[1:]),
    "operator": lambda x, w: operator.iadd(x, w),
    "special method": lambda x, w: x.__iadd__(w),
    "function": lambda x, w: torch.relu_(x.add_(w)),
}


@pytest.mark.parametrize("way", list(WRITES))
@pytest.mark.parametrize("is_constant", [True, False])
def test_argument_written_into_under_grad(way, is_constant):
    def step(compile, x, w):
        @compile
        def f(x, w):
            before = (x * w).cos()
            WRITES[way](x, w)
            return before + (x.sin() * w).exp()

        argument = x if is_constant else x * 1
        y = f(argument, w)
        y.sum().backward()
        return y, argument, argument.requires_grad, argument._version

    report = check(step, constant(4) if is_constant else leaf(4), leaf(4))
    assert report.num_graphs >= 2


def test_buffer_of_a_module_written_into_under_grad():
    class Running(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            y = self.linear(x)
            self.mean[:] = 0.5 * self.mean.detach() + y.mean(0)
            return (y - self.mean).tanh()

    def step(compile, model, x):
        f = compile(model)
        for _ in range(2):
            model.mean.detach_()
            f(x).square().sum().backward()
        return model.mean

    report = check(step, Running, leaf(5, 3))
    assert report.num_graphs >= 2


def test_without_gradient_recording_the_graph_goes_on():
    def step(compile, x, w):
        @compile
        def f(x, w):
            with torch.no_grad():
                x.mul_(2)
            return (x * w).sin()

        y = f(x, w)
        y.sum().backward()
        return y

    report = check(step, constant(4), leaf(4))
    assert report.num_graphs == 1


def test_under_fullgraph_it_is_refused():
    x = torch.ones(3)
    f = gradc.compile(lambda x, w: x.mul_(w), fullgraph=True)
    with pytest.raises(gradc.FallbackError, match="gradient recording"):
        f(x, torch.ones(3, requires_grad=True))
