"""Where a dimension has size 1, its stride tells how gradients were added up: over the first of them, or into a new tensor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compilers import Compiler, find
from tests.oracle import check, leaf

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "both made by nodes": lambda t: t.std() + t.var(),
    "by one node": lambda t: (t * t).sum() + t.std(),
    "first is a view": lambda t: t.mT.sin().sum() + t.std(),
    "first goes on to another node": lambda t: (t + t.relu()).logsumexp(0).sum() + t.relu().norm(),
    "first is expanded": lambda t: t.std() + t.sum(),
    "three": lambda t: t.norm() + t.softmax(-1).var() + (t - t.mean()).square().sum(),
}


@pytest.fixture(params=["gradc", "gradc:eager", "gradc_captured", "captured"])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    return find(request.param)


@pytest.fixture(params=FUNCTIONS)
def function(request: pytest.FixtureRequest) -> Callable[[Tensor], Tensor]:
    return FUNCTIONS[request.param]


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1, 2), (2, 3)])
def test_first_order(shape: tuple[int, int], function: Any, compiler: Compiler) -> None:
    def step(compile: Any, a: Tensor) -> Any:
        return torch.autograd.grad(compile(lambda a: function(a.mT))(a), a)

    check(step, leaf(*shape), compiler=compiler)


@pytest.mark.parametrize("shape", [(1, 3), (3, 1)])
def test_grad_attribute_and_gradients_from_outside(shape: tuple[int, int], function: Any, compiler: Compiler) -> None:
    def step(compile: Any, a: Tensor) -> None:
        y, t = compile(lambda a: (function(a.mT), a.mT * 2))(a)
        (y + t.cos().std()).backward()

    check(step, leaf(*shape), compiler=compiler)


@pytest.mark.parametrize("shape", [(1, 2), (1, 3), (3, 1)])
def test_second_order(shape: tuple[int, int], function: Any, compiler: Compiler) -> None:
    def step(compile: Any, a: Tensor) -> Any:
        (grad,) = torch.autograd.grad(compile(lambda a: function(a.mT))(a), a, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), a)

    check(step, leaf(*shape), compiler=compiler, allow_fallback=compiler.is_captured)  # create_graph is for torch's engine


def inside(t: Tensor) -> tuple[Tensor, Tensor]:
    u = t + 1
    return u, u.std()


OUTSIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "nobody holds it": lambda u: u.std(),
    "it is a view": lambda u: u.mT.square().sum(),
    "two views of one": lambda u: (u.mT.contiguous() + u.mT).norm(),
    "it goes to two nodes": lambda u: (u + u.detach().requires_grad_()).std(),
}


@pytest.mark.parametrize("shape", [(1, 3), (3, 1)])
@pytest.mark.parametrize("outside", OUTSIDE)
def test_first_comes_from_outside(outside: str, shape: tuple[int, int], compiler: Compiler) -> None:
    def step(compile: Any, a: Tensor) -> Any:
        u, inner = compile(lambda a: inside(a.mT))(a)
        return torch.autograd.grad(OUTSIDE[outside](u) + inner, a)

    check(step, leaf(*shape), compiler=compiler)


@pytest.mark.parametrize("shape", [(1, 3), (3, 1)])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_hook_sees_it(keeps: bool, shape: tuple[int, int], compiler: Compiler) -> None:
    def step(compile: Any, a: Tensor) -> Any:
        u, inner = compile(lambda a: inside(a.mT))(a)
        kept: list[Tensor] = []
        v = u + 1
        v.register_hook(lambda grad: kept.append(grad) if keeps else None)
        return *torch.autograd.grad(v.std() + inner, a), *kept

    check(step, leaf(*shape), compiler=compiler)


@pytest.mark.parametrize("shape", [(1, 3), (3, 1)])
def test_the_caller_holds_it(shape: tuple[int, int], compiler: Compiler) -> None:
    def step(compile: Any, a: Tensor) -> Any:
        u, inner = compile(lambda a: inside(a.mT))(a)
        tangent = torch.ones(shape).mT
        return *torch.autograd.grad((u, inner), a, (tangent, torch.ones(()))), tangent

    check(step, leaf(*shape), compiler=compiler)


@pytest.mark.parametrize("shape", [(1, 3), (3, 1)])
def test_saved_tensors_hooks(shape: tuple[int, int], function: Any) -> None:
    def step(compile: Any, a: Tensor) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            u, inner = compile(lambda a: inside(a.mT))(a)
            return torch.autograd.grad(function(u) + inner, a)

    check(step, leaf(*shape), allow_fallback=True)


def laid_out_anew(grad: Tensor) -> Tensor:
    return torch.empty_strided(grad.shape, (7, 5) if grad.shape[1] == 1 else (1, 5)).copy_(grad)


HOOKS: dict[str, list[Callable[[Tensor], Tensor | None]]] = {
    "one": [laid_out_anew],
    "the next returns None": [laid_out_anew, lambda grad: None],
    "the next returns it": [laid_out_anew, lambda grad: grad],
    "the next returns a view": [laid_out_anew, lambda grad: grad.view_as(grad)],
}


def goes_on(a: Tensor) -> tuple[Tensor, ...]:
    t = a.mT
    return (t + t.exp(),)


def with_another_output(a: Tensor) -> tuple[Tensor, ...]:
    t = a.mT
    return t + t.exp(), t.sin()


def waits_elsewhere(a: Tensor) -> tuple[Tensor, ...]:
    t, y = a.mT, a.mT.sin()
    z = t.exp()
    return t + y, z


FORWARDS = [goes_on, with_another_output, waits_elsewhere]


def backward_through(hooks: list[Any], forward: Any, compile: Any, a: Tensor) -> Any:
    out, *others = compile(forward)(a)
    for hook in hooks:
        out.register_hook(hook)
    return torch.autograd.grad((out * 3).sum() + sum(other.sum() for other in others), a)


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1, 1)])
@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("forward", FORWARDS)
def test_a_hook_returns_it(forward: Any, hooks: str, shape: tuple[int, int], compiler: Compiler) -> None:
    """It then has a Python object, too, which the engine does not count."""
    check(functools.partial(backward_through, HOOKS[hooks], forward), leaf(*shape), compiler=compiler)


@pytest.mark.parametrize("compiler", ["gradc", "gradc_captured", "captured"], indirect=True)  # a node in Python cannot tell
@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1, 1)])
@pytest.mark.parametrize("forward", FORWARDS)
def test_the_next_hook_keeps_it(forward: Any, shape: tuple[int, int], compiler: Compiler) -> None:
    def step(compile: Any, a: Tensor) -> Any:
        kept: list[Tensor] = []
        return *backward_through([laid_out_anew, kept.append], forward, compile, a), *kept

    check(step, leaf(*shape), compiler=compiler)
