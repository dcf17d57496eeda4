"""Guards that no program needs are left out for gradc; those that are needed hold."""

import contextlib
import itertools

import pytest
import torch
from torch import nn

import gradc
from gradc.bits import same_bits


def compiled(net):  # by another backend
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    return torch.compile(net, backend=backend), graphs


def test_marks_hold_from_the_next_compilation_on():
    torch.manual_seed(0)
    net, x = nn.Linear(4, 3), torch.randn(5, 4)
    run = gradc.compile(net)
    run(x)
    before = gradc.counters["stats"]["unique_graphs"]
    torch._dynamo.maybe_mark_dynamic(net.weight, 0)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    assert gradc.bits.same_bits(run(x), net(x))
    assert gradc.counters["stats"]["unique_graphs"] == before
    for size in (6, 7, 8):
        torch._dynamo.mark_static(x := torch.randn(size, 4), 0)
        assert gradc.bits.same_bits(run(x), net(x))
    assert gradc.counters["stats"]["unique_graphs"] == before + 3


def test_a_parameter_that_is_marked_beforehand_is_guarded():
    net, x = nn.Linear(4, 3), torch.randn(5, 4)
    torch._dynamo.maybe_mark_dynamic(net.weight, 0)
    run = gradc.compile(net)
    assert gradc.bits.same_bits(run(x), net(x))


def test_another_backend_asks_for_the_marks_of_parameters_as_before():
    net, x = nn.Linear(4, 3), torch.randn(5, 4)
    gradc.compile(nn.Linear(4, 3))(x)
    run, graphs = compiled(net)
    run(x)
    torch._dynamo.maybe_mark_dynamic(net.weight, 0)
    run(x)
    assert len(graphs) == 2


class Half(nn.Module):
    def forward(self, x):
        return x * 0.5


class Double(nn.Module):
    def forward(self, x):
        return x * 2


def gradient(run, x, hooks):
    x = x.clone().requires_grad_()
    around = torch.autograd.graph.saved_tensors_hooks(*hooks) if hooks else contextlib.nullcontext()
    with around:
        value = run(x)
    value.sum().backward()
    return [value, x.grad]


CALLED = (Half().forward, Double().forward)
OTHERS = (Half().forward, Half().forward)


@pytest.mark.parametrize("turns", list(itertools.permutations(["none", "graphs", "other graphs", "called", "others"], 3)))
def test_saved_tensors_hooks_of_all_kinds_come_and_go(turns):
    """Those that are graphs are called as any other, whatever there was when the function was compiled."""
    graphs = {
        "none": None,
        "graphs": (torch.fx.symbolic_trace(Half()), torch.fx.symbolic_trace(Double())),
        "other graphs": (torch.fx.symbolic_trace(Half()), torch.fx.symbolic_trace(Half())),
        "called": CALLED,
        "others": OTHERS,
    }
    gradc.reset()
    run, x = gradc.compile(lambda x: (x.sin() * x).exp()), torch.randn(5)
    for turn in turns:
        assert same_bits(gradient(run, x, graphs[turn]), gradient(lambda x: (x.sin() * x).exp(), x, graphs[turn]))
