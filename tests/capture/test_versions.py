"""Version counters of gradients that a captured pass leaves: eager's, when it is captured and when it is replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compilers import find
from tests.nodes.test_versions import FORMULAS
from tests.oracle import check, constant, leaf

CAPTURED = find("captured")


class GivesTwo(torch.autograd.Function):
    """Its backward hands on one tensor twice, once for nobody."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


def hooked_leaf(a: Tensor) -> Tensor:
    a.register_post_accumulate_grad_hook(lambda a: None)
    return (a.split(1)[1] * a).tanh()


def hooked_between(a: Tensor) -> Tensor:
    p = a.sin()
    p.register_hook(lambda grad: grad * 2)
    return p.cos() + p.tanh() + a.exp()


def handed_on(a: Tensor) -> Tensor:
    p = a.tanh() ** 2 + a
    p.register_hook(lambda grad: None)
    return p


def given_for_nobody(a: Tensor) -> Tensor:
    p = GivesTwo.apply(a.detach(), a).tanh()
    return p.mean() + p


def packed(a: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        return torch.addcmul(a, torch.ones(4, 1), a)


def packed_beside_a_shared_gradient(a: Tensor) -> Tensor:
    """The node that is unpacked for reads a gradient that waits for the leaf, too: eager adds to that in place."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        return (a.tanh() + a).double() + 1


@pytest.mark.parametrize(
    "function", [hooked_leaf, hooked_between, handed_on, given_for_nobody, packed, packed_beside_a_shared_gradient]
)
def test_of_what_nodes_take_and_return_that_run_live(function: Callable[[Tensor], Tensor]) -> None:
    def step(compile: Any, a: Tensor, scale: Tensor) -> list[int]:
        return [(function(a) * scale).sum().backward() or a.grad._version for _ in range(3)]

    check(step, leaf(4, 2), constant(4, 2), compiler=CAPTURED, allow_fallback=True)


@pytest.mark.parametrize("function", FORMULAS.values(), ids=FORMULAS)
def test_formulas_that_write_into_their_result(function: Callable[[Tensor], Tensor]) -> None:
    def step(compile: Any, a: Tensor) -> int:
        function(a).sum().backward()
        return a.grad._version

    check(step, leaf(3, 2), compiler=CAPTURED)


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_saved_tensors_of_a_loss_are_unpacked_as_often_as_in_eager(is_asked_for: bool) -> None:
    """How often its formula writes hangs on whether it has weights, which are asked for."""

    def step(compile: Any, a: Tensor) -> list[str]:
        seen: list[str] = []
        note: Any = lambda word: lambda t: seen.append(word) or t
        with torch.autograd.graph.saved_tensors_hooks(note("pack"), note("unpack")):
            weight = torch.ones(2) if is_asked_for else None
            loss = torch.nn.functional.binary_cross_entropy_with_logits(a, a.detach().sigmoid(), weight=weight)
        loss.backward()
        return seen

    check(step, leaf(3, 2), compiler=CAPTURED, allow_fallback=True)
