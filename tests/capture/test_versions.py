"""Version counters of gradients that a captured pass leaves: eager's, when it is captured and when it is replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradc
from tests.compilers import find
from tests.nodes.test_versions import FORMULAS
from tests.oracle import check, constant, indices, leaf

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


def test_of_what_waits_beside_a_node_without_hooks_that_runs_live() -> None:
    """Who keeps what such a node is given was not noted, and an IndexError was raised: index_put cannot be captured."""

    def step(compile: Any, a: Tensor, places: Tensor) -> tuple[Tensor, int]:
        (slope,) = torch.autograd.grad(a.index_add(0, places, a[places]).sin().sum(), a, create_graph=True)
        (bend,) = torch.autograd.grad(slope.square().sum(), a)
        return bend, bend._version

    check(step, leaf(4, 2), indices(5, high=4), compiler=CAPTURED, allow_fallback=True)


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


def shared_by_leaves(w: Tensor, b: Tensor, keep: Callable[[Tensor], None]) -> Tensor:
    """The hook sees a gradient that waits for ``b``, too."""
    w.register_hook(keep)
    first = b.exp()
    return first + torch.tanh(w + b)


def shared_behind_a_hook(w: Tensor, b: Tensor, keep: Callable[[Tensor], None]) -> Tensor:
    """Between two hooks, of which one hands on what the other sees."""
    w.register_hook(keep)
    first = b.tanh()
    p = w + b
    p.register_hook(lambda grad: None)
    return first + p.cos()


def waits_for_a_sum(w: Tensor, b: Tensor, keep: Callable[[Tensor], None]) -> Tensor:
    first = w.tanh()
    p = w + b
    p.register_hook(keep)
    return first + p.cos()


def beside_a_view(w: Tensor, b: Tensor, keep: Callable[[Tensor], None]) -> Tensor:
    """A view of a gradient waits for ``w`` when the hook is called."""
    squares, products = b * b, b * w
    p = b - w
    p.register_hook(keep)
    total = products + p
    rest = squares + w.view(16).view(4, 4)
    return p + total + rest.tanh()


KEPT = (shared_by_leaves, shared_behind_a_hook, waits_for_a_sum, beside_a_view)


@pytest.mark.parametrize("from_the_first", [False, True])
@pytest.mark.parametrize("function", KEPT)
def test_of_gradients_that_a_hook_keeps_at_some_passes(function: Callable[..., Tensor], from_the_first: bool) -> None:
    """Eager adds in place to what nobody holds. Where a hook always keeps, or never, each pass is replayed to its end."""

    live: list[int] = []

    def versions(enabled: Callable[[], contextlib.AbstractContextManager[None]]) -> list[Any]:
        seen, kept = [], []
        for keeps in [from_the_first] * 3 + [not from_the_first] * 2:
            w, b = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
            with enabled():
                function(w, b, lambda grad, keeps=keeps: kept.append(grad) if keeps else None).sum().backward()
            assert w.grad is not None and b.grad is not None
            seen.append((w.grad._version, b.grad._version, [grad._version for grad in kept], w.grad, b.grad))
            kept.clear()
            live.append(gradc.counters["compiled_autograd"]["finished live"])
        return seen

    gradc.reset()
    with gradc.config.patch(compile_seconds=None):
        got = versions(gradc.compiled_autograd.enable)
    assert gradc.counters["compiled_autograd"]["hits"] == 4 and live == [0, 0, 0, 1, 2]
    assert str(got) == str(versions(contextlib.nullcontext))
