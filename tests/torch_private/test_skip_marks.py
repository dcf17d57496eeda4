"""Functions that torch.compile gave up before gradc compiles them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gradc


def breaks_in_a_loop(x: Tensor) -> Tensor:
    for _ in range(2):
        torch._dynamo.graph_break()
        x = x.sin()
    return x


def calls_it_behind_a_break(x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return breaks_in_a_loop(x)


def counted(function: Callable[[Tensor], Tensor]) -> Counter[str]:
    gradc.counters.clear()
    compiled = gradc.compile(function)
    for _ in range(3):
        compiled(torch.ones(3, requires_grad=True))
    return gradc.counters["uncompiled"].copy()


@pytest.mark.parametrize("function", [breaks_in_a_loop, calls_it_behind_a_break])
def test_gradc_is_asked_for_what_another_compiler_gave_up(function: Callable[[Tensor], Tensor]) -> None:
    """Nothing was compiled and nothing counted."""
    torch.compiler.reset()
    alone = counted(function)
    torch.compiler.reset()
    torch.compile(function, backend="eager")(torch.ones(3))
    assert counted(function) == alone != Counter()


def test_what_another_compiler_compiled_stays() -> None:
    torch.compiler.reset()
    num_compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        num_compiled.append(1)
        return graph

    def double(x: Tensor) -> Tensor:
        return x * 2

    theirs = torch.compile(double, backend=backend)
    theirs(torch.ones(3))
    gradc.compile(double)(torch.ones(3))
    theirs(torch.ones(3))
    assert len(num_compiled) == 1
