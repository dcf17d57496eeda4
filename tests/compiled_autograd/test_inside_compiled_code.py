"""Backward passes inside compiled code: captured where eager's nodes are met, left to the engine where all is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gradc
from gradc import native
from gradc.bits import same_bits
from gradc.journal import Uncompiled, listening

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))


def gradients(compile: Any, between: Any) -> list[Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))

    def step(x: torch.Tensor) -> None:
        between(net(x).square().sum()).backward()

    compiled = compile(step)
    for _ in range(3):
        compiled(torch.ones(3, 4))
    return [weight.grad for weight in net.parameters()]


def between_graphs(loss: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return torch.compiler.disable(lambda value: value * 2)(loss)


def test_segments_alone_are_the_engines() -> None:
    assert same_bits(gradients(lambda step: step, lambda loss: loss * 2), gradients(gradc.compile, lambda loss: loss * 2))
    assert not gradc.counters["compiled_autograd"] and not gradc.counters["fallbacks"]


def test_what_is_not_compiled_is_captured() -> None:
    assert same_bits(gradients(lambda step: step, lambda loss: loss * 2), gradients(gradc.compile, between_graphs))
    assert gradc.counters["compiled_autograd"]["hits"] >= 1


def test_where_it_is_asked_for_segments_are_captured() -> None:
    with gradc.compiled_autograd.enable():
        gradients(gradc.compile, lambda loss: loss)
    assert gradc.counters["compiled_autograd"]["hits"] >= 2


def test_what_consists_of_segments() -> None:
    weight = torch.ones(3, requires_grad=True)
    compiled = gradc.compile(lambda x: x.sin() * 2)(weight)
    ask = native.extension.consists_of_segments
    assert ask((compiled,)) and ask((weight,)) and ask((compiled, torch.ones(3)))
    assert not ask((compiled * 2,)) and not ask((compiled, weight.exp()))
    assert not ask((gradc.compile(lambda x: x.cos())(weight.exp()),))
    assert not ask((torch.autograd.graph.get_gradient_edge(compiled),))


@pytest.mark.usefixtures("nothing_captured")
def test_what_gradc_traces_there_is_nothing_for_dynamo() -> None:
    """Sizes that change are traced with sympy, whose functions were each tried, and counted as in no graph. Found in MACE."""
    weight = torch.ones(4, requires_grad=True)

    @gradc.compile
    def step(x: torch.Tensor) -> None:
        between_graphs((x * weight).tanh()).sum().backward()

    with listening() as events:
        for size in (3, 5, 6, 7):
            step(torch.ones(size, 4))
    assert gradc.counters["compiled_autograd"]["made dynamic"] == 1
    places = [str(event.what.where) for event in events if isinstance(event.what, Uncompiled)]
    assert places and not [place for place in places if "test_inside_compiled_code" not in place]
