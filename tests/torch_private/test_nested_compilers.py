"""What gradc compiled stays gradc's where another backend compiles the code around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc.bits import same_bits

x = torch.linspace(-1, 1, 256).view(4, 64)
w = torch.linspace(-1, 1, 4096).view(64, 64).requires_grad_()


def head(x: Tensor, w: Tensor) -> Tensor:
    """The README's: its gradient under autocast is another one under torch.compile."""
    with torch.autocast("cpu", enabled=False):
        return (x.float() @ w.float().T).sin().sum()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = w

    @gradc.compile
    def forward(self, x: Tensor) -> Tensor:
        return head(x, self.weight)


class Holder:
    """No module."""

    @gradc.compile
    def method(self, x: Tensor, w: Tensor) -> Tensor:
        return head(x, w)


compiled = gradc.compile(head)
by_name = torch.compile(head, backend="gradc")
model, holder = Model(), Holder()
compiled_module = gradc.compile(nn.Linear(64, 64))

CALLERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "function": lambda x, w: compiled(x, w) * 1,
    "by name": lambda x, w: by_name(x, w) * 1,
    "the function itself": compiled,
    "default argument": lambda x, w, f=compiled: f(x, w) * 1,  # type: ignore[misc]
    "method": lambda x, w: holder.method(x, w) * 1,
    "forward": lambda x, w: model(x) * 1,
    "checkpoint": lambda x, w: torch.utils.checkpoint.checkpoint(compiled, x, w, use_reentrant=False) * 1,
    "map": lambda x, w: sum(map(compiled, [x, x], [w, w])),  # type: ignore[arg-type]
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()
    gradc.reset()


def gradient(function: Callable[..., Tensor]) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = function(x, w)
    return torch.autograd.grad(loss, w)[0]


@pytest.mark.filterwarnings("ignore:torch.compile")
@pytest.mark.parametrize("name", CALLERS)
def test_inside_of_another_compiler(name: str) -> None:
    caller = CALLERS[name]
    expected = gradient(caller)
    gradc.reset()
    outer = torch.compile(caller, backend="aot_eager")
    assert same_bits(gradient(outer), expected) and same_bits(gradient(outer), expected)
    assert gradc.counters["stats"]["unique_graphs"] >= 1


def test_a_module_inside_of_another_compiler() -> None:
    outer = torch.compile(lambda x: compiled_module(x) * 1, backend="aot_eager")
    assert same_bits(outer(x), compiled_module._orig_mod(x))
    assert gradc.counters["stats"]["unique_graphs"] == 1


def test_fullgraph_outside_says_why() -> None:
    with pytest.raises(Exception, match="What gradc compiled stays gradc's"):
        torch.compile(CALLERS["function"], backend="aot_eager", fullgraph=True)(x, w)
    with pytest.raises(Exception, match="What gradc compiled stays gradc's"):
        torch.compile(CALLERS["method"], backend="aot_eager", fullgraph=True)(x, w)


def test_compiled_by_another_afterwards() -> None:
    with pytest.warns(UserWarning, match="head is compiled by gradc already, and stays so"):
        assert torch.compile(compiled, backend="aot_eager") is compiled


@pytest.mark.parametrize("name", sorted(CALLERS.keys() - {"checkpoint"}))
def test_gradcs_own_graphs_go_on(name: str) -> None:
    caller = CALLERS[name]
    expected = gradient(caller)
    gradc.reset()
    torch.compiler.reset()
    assert same_bits(gradient(gradc.compile(caller)), expected)
    assert gradc.counters["stats"]["unique_graphs"] == 1 and not gradc.counters["fallbacks"]


def test_export_goes_through() -> None:
    class Outer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return compiled(x, x) * 1

    exported: Any = torch.export.export(Outer(), (torch.ones(4, 64),), strict=True)
    assert exported.module()(torch.ones(4, 64)).shape == ()


def test_a_model_whose_forward_is_compiled_already() -> None:
    assert same_bits(gradient(lambda x, w: gradc.compile(Model())(x)), gradient(head))
