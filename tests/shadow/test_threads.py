"""Verified calls and their backward passes in threads: whose pass it is, what is left out, and what is no difference."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import gradc
from gradc.backends import lookup_backend
from gradc.bits import same_bits
from tests.shadow.test_verify import VERIFY, counted, leaves, nothing_counted

__all__ = ["nothing_counted"]  # a fixture

SECONDS = 60


def energy(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).tanh().exp()


def in_a_thread(function: Callable[[], Any]) -> Any:
    """What it returns; its nodes are numbered from the beginning."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(SECONDS)
    return found[0]


def second_order(y: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), (x, w), retain_graph=True)


def test_both_orders_in_a_thread_whose_nodes_have_lower_numbers_than_the_call_s():
    x, w = leaves(3)
    y = gradc.compile(energy, options=VERIFY)(x, w)
    found = in_a_thread(lambda: second_order(y, x, w))
    assert same_bits(list(found), list(second_order(energy(x, w), x, w)))
    assert counted() == {"calls": 1, "backwards": 2}


def test_a_call_in_a_thread_on_what_another_computed_of_the_same_weight():
    x, w = leaves(3)
    hidden = (x * w).sin()
    y = in_a_thread(lambda: gradc.compile(energy, options=VERIFY)(hidden, w))
    y.sum().backward()
    assert counted() == {"calls": 1, "backwards": 1}


class Gate:
    """The thread that comes first stops, until it is let go on."""

    def __init__(self) -> None:
        self.is_reached, self.is_open = threading.Event(), threading.Event()

    def wait(self, *_: Any) -> None:
        if not self.is_reached.is_set():
            self.is_reached.set()
            assert self.is_open.wait(SECONDS)

    def hold(self, function: Callable[[], Any], meanwhile: Callable[[], Any]) -> list[Any]:
        """Both results; ``meanwhile`` runs while a thread that runs ``function`` stands at the gate."""
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(function()))
        thread.start()
        try:
            assert self.is_reached.wait(SECONDS)
            found.append(meanwhile())
        finally:
            self.is_open.set()
            thread.join(SECONDS)
        return found


def test_of_two_passes_through_one_graph_at_once_the_first_is_verified():
    x, w = leaves(3)
    computed, gate = x * 2, Gate()
    loss = gradc.compile(energy, options=VERIFY)(computed, w).sum()
    computed.grad_fn.register_prehook(gate.wait)
    differentiate = lambda: torch.autograd.grad(loss, (x, w), retain_graph=True)
    for grads in gate.hold(differentiate, differentiate):
        assert same_bits(list(grads), list(torch.autograd.grad(energy(x * 2, w).sum(), (x, w))))
    assert counted() == {"calls": 1, "backwards": 1, "left out: passes through one graph at once": 1}
    differentiate()
    assert counted()["backwards"] == 2


def test_a_pass_that_is_left_out_is_so_at_every_output():
    """When it comes to the second, the pass that was first may be over; but what came in at the first was not heard."""
    x, w = leaves(3)
    computed, gate = x * 2, Gate()
    early, late = gradc.compile(lambda x, w: (x.sin(), (x * w).exp()), options=VERIFY)(computed, w)
    early_loss, both = early.sum(), early.sum() + late.sum()
    computed.grad_fn.register_prehook(gate.wait)
    first = threading.Thread(target=lambda: torch.autograd.grad(early_loss, x, retain_graph=True))

    def let_the_first_end(*_: Any) -> None:
        gate.is_open.set()
        first.join(SECONDS)

    late.grad_fn.register_hook(let_the_first_end)
    first.start()
    assert gate.is_reached.wait(SECONDS)
    torch.autograd.grad(both, (x, w), retain_graph=True)
    assert counted() == {"calls": 1, "backwards": 1, "left out: passes through one graph at once": 1}


def test_a_pass_that_fails_is_not_under_way_any_more():
    x, w = leaves(3)
    computed = x * 2
    loss = gradc.compile(energy, options=VERIFY)(computed, w).sum()

    def fail(_: Any) -> None:
        raise ValueError("from a hook")

    handle = computed.grad_fn.register_prehook(fail)
    for _ in range(2):
        try:
            torch.autograd.grad(loss, x, retain_graph=True)
        except ValueError:
            handle.remove()
    assert counted() == {"calls": 1, "backwards": 1}


def test_a_backward_is_left_out_while_another_thread_verifies_a_call():
    """Each puts copies in the place of what can be come to, and puts back what it found there."""
    gate = Gate()

    def waiting(program: Any) -> Any:
        run = lookup_backend("eager")(program)
        return lambda args: (gate.wait(), run(args))[1]

    gradc.register_backend("waiting", waiting)
    x, w = leaves(3)
    y = gradc.compile(energy, options=VERIFY)(x, w)
    other = gradc.compile(lambda x, w: (x + w).cos(), backend="waiting", options=VERIFY)
    gate.hold(lambda: other(torch.ones(3), torch.ones(3)), lambda: y.sum().backward())
    assert counted() == {"calls": 2, "left out: another thread is busy": 1}
