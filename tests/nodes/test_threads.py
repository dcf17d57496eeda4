"""Several threads over what they share: one graph, one leaf, one tracer. ``make tsan`` runs these with ThreadSanitizer.

Rounds are many, since a fault shows only when two threads meet; the sanitizer sees it where they might have.
"""

from __future__ import annotations

import copy
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from gradc.bits import same_bits


def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w).exp()


def at_once(*functions: Any) -> list[Any]:
    """Run each in a thread, starting together; their results in order, or the first error."""
    barrier = threading.Barrier(len(functions))
    results: list[Any] = [None] * len(functions)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait()
            results[number] = functions[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.fixture(autouse=True)
def threads_change_often():
    """Python lets another thread go on every microsecond, instead of every five milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    gradc.reset()


@pytest.fixture
def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)


def test_two_threads_first_meet_the_hook_of_an_output(leaves):
    """A segment wraps the hooks of its outputs when it first runs: two threads may run it first."""
    x, w = leaves
    g = gradc.compile(f)
    expected = [2 * grad for grad in torch.autograd.grad(f(x, w).sum(), leaves)]
    for _ in range(50):
        y = g(x, w)
        y.register_hook(lambda grad: 2 * grad)
        loss = y.sum()
        for grads in at_once(*[lambda: torch.autograd.grad(loss, leaves, retain_graph=True)] * 3):
            assert same_bits(list(grads), list(expected))


def test_two_threads_differentiate_one_graph_twice(leaves):
    """Under create_graph a segment shows its saved values as inputs, in whichever thread is first."""
    x, w = leaves

    def second_order(y: torch.Tensor) -> Any:
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), leaves, retain_graph=True)

    g = gradc.compile(f)
    expected = second_order(f(x, w))
    for _ in range(30):
        y = g(x, w)
        for grads in at_once(*[lambda: second_order(y)] * 3):
            assert same_bits(list(grads), list(expected))


def test_two_threads_replay_one_graph(leaves):
    """A walk tells a segment that it is walked: that is of one run, not of the node."""
    x, w = leaves
    g = gradc.compile(f)
    expected = torch.autograd.grad(f(x, w).sum(), leaves)
    with gradc.compiled_autograd.enable():
        torch.autograd.grad(g(x, w).sum(), leaves)

    def replay(loss: torch.Tensor) -> Any:
        with gradc.compiled_autograd.enable():
            return torch.autograd.grad(loss, leaves, retain_graph=True)

    for _ in range(50):
        loss = g(x, w).sum()
        for grads in at_once(*[lambda: replay(loss)] * 3):
            assert same_bits(list(grads), list(expected))


def test_two_threads_trace_for_all_sizes():
    """Torch has room for one tracer of autograd nodes in a process."""
    gradc.reset()
    features = (6, 7, 8)
    weights = {n: [torch.randn(n, n, requires_grad=True) for _ in range(8)] for n in features}

    def slopes(n: int) -> Any:
        found = []
        for size in (3, 4, 5, 6):
            y = torch.ones(size, n)
            for w in weights[n]:
                y = torch.tanh(y @ w).mul(0.5).relu()
            found += torch.autograd.grad(y.sum(), weights[n])
        return found

    def captured(n: int) -> Any:
        with gradc.compiled_autograd.enable():
            return slopes(n)

    for n, grads in zip(features, at_once(*[lambda n=n: captured(n) for n in features]), strict=True):
        assert same_bits(list(grads), list(slopes(n)))
    assert gradc.counters["compiled_autograd"]["made dynamic"]


def test_threads_train_models_of_their_own_with_hooks():
    """Each hides the edges to its leaves for a while, and runs passes inside passes."""

    def train(model: nn.Module, compiled: Any) -> list[torch.Tensor]:
        other = torch.ones(4, 6, requires_grad=True)

        def pass_inside(grad: torch.Tensor) -> None:
            with torch.enable_grad():
                compiled(other).sum().backward()

        for step in range(20):
            y = compiled(torch.ones(4, 6))
            if step % 2:
                y.register_hook(pass_inside)
            y.square().sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
        return [*model.parameters(), other.grad]

    models = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)) for _ in range(4)]
    copies = copy.deepcopy(models)
    found = at_once(*[lambda model=model: train(model, gradc.compile(model)) for model in models])
    for model, values in zip(copies, found, strict=True):
        assert same_bits(list(values), list(train(model, model)))


def test_an_error_in_the_middle_of_a_call_leaves_nothing_behind(leaves):
    """Raised by a hook of an output, of a leaf or of saved tensors: the next call is as if it had not been."""
    x, w = leaves
    g = gradc.compile(f)
    expected = torch.autograd.grad(f(x, w).sum(), leaves)

    def fail(*_: Any) -> Any:
        raise ValueError("from a hook")

    def fails_in_output_hook() -> None:
        y = g(x, w)
        y.register_hook(fail)
        y.sum().backward()

    def fails_in_leaf_hook() -> None:
        handle = w.register_hook(fail)
        try:
            g(x, w).sum().backward()
        finally:
            handle.remove()

    def fails_in_pack() -> None:
        with torch.autograd.graph.saved_tensors_hooks(fail, lambda packed: packed):
            g(x, w)

    def fails_in_unpack() -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, fail):
            y = g(x, w)
        y.sum().backward()

    for fails in (fails_in_output_hook, fails_in_leaf_hook, fails_in_pack, fails_in_unpack):
        for enabled in (False, True):
            with gradc.compiled_autograd.enable() if enabled else gradc.compiled_autograd.disable():
                with pytest.raises(ValueError, match="from a hook"):
                    fails()
                x.grad = w.grad = None
                grads = torch.autograd.grad(g(x, w).sum(), leaves)
            assert same_bits(list(grads), list(expected))


def test_a_leaf_is_passed_over_in_one_thread_while_another_calls_its_hooks(leaves):
    """Second order through a segment may reach no use of a leaf: its hooks are then not called, in that pass only."""
    x, w = leaves
    w.register_hook(lambda grad: grad.clone())

    def two_values(x, w):
        a = torch.tanh(x).exp()
        return a.sin(), (a @ w).cos()

    def second_order(function: Any) -> Any:
        first, _ = function(x, w)
        (slope,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return torch.autograd.grad(slope.sum(), (x, w), allow_unused=True)

    def first_order(function: Any) -> Any:
        return torch.autograd.grad(function(x, w)[1].sum(), (x, w))

    g = gradc.compile(two_values)
    expected = [second_order(two_values), first_order(two_values)]
    for _ in range(30):
        found = at_once(lambda: second_order(g), lambda: first_order(g), lambda: second_order(g))
        for grads, wanted in zip(found, [*expected, expected[0]], strict=True):
            for a, b in zip(grads, wanted, strict=True):
                assert same_bits(a, b)
