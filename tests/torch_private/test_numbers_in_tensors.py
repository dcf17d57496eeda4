"""Numbers of a call that are tensors, as ``alpha=`` of ``add_``: read when the call is made, and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import gradc
from tests.oracle import check, constant, leaf

Tensor = torch.Tensor
CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "add_": lambda p, g, rate: p.add_(g, alpha=-rate),
    "sub_": lambda p, g, rate: p.sub_(g, alpha=rate),
    "add": lambda p, g, rate: p.add(g, alpha=rate).sin(),
    "sub": lambda p, g, rate: p.sub(g, alpha=rate) * 2,
    "addcmul_": lambda p, g, rate: p.addcmul_(g, g, value=-rate),
    "addcdiv_": lambda p, g, rate: p.addcdiv_(g, g.abs() + 1, value=-rate),
    "addcdiv": lambda p, g, rate: p.addcdiv(g, g.abs() + 1, value=rate),
    "to a view": lambda p, g, rate: p[1:].add_(g[1:], alpha=rate).sum(),
    "to a view that is returned": lambda p, g, rate: p[1:].add_(g[1:], alpha=rate),
    "of a broadcast": lambda p, g, rate: p.add_(g[0], alpha=rate * 2),
}


def step_of(call: Callable[..., Any], rates: Sequence[Tensor], compile: Any, p: Tensor, g: Tensor) -> Any:
    def update(p: Tensor, g: Tensor, rate: Tensor) -> Any:
        with torch.no_grad():
            return call(p, g.sin(), rate)

    run, seen = compile(update), []
    for rate in rates:
        try:
            seen.append((run(p, g, rate), p._version))
        except (RuntimeError, TypeError) as error:
            seen.append(str(error))
    return seen


RATES = [torch.tensor(0.1), torch.tensor(0.3), torch.tensor(0.7, dtype=torch.float64), torch.tensor(2), torch.tensor(-0.0)]


@pytest.mark.parametrize("name", CALLS)
def test_bits_and_versions(name: str) -> None:
    is_left = name.endswith("returned")  # as a view is that was written by any op
    check(lambda *args: step_of(CALLS[name], RATES, *args), leaf(67, 3), constant(67, 3), allow_fallback=is_left)


def test_numbers_that_eager_refuses() -> None:
    """One that requires a gradient, several numbers; a fraction of integers."""
    refused = [torch.tensor(0.1, requires_grad=True), torch.ones(2), torch.ones(1), torch.tensor(1j), torch.tensor(True)]
    for rates in ([*refused, torch.tensor(0.1)], [torch.tensor(0.1), *refused]):
        for make in (constant(5), lambda: torch.arange(5), lambda: torch.ones(5, dtype=torch.bool)):
            check(lambda p, *args, r=rates: step_of(CALLS["add_"], r, p, *args), make, constant(5), allow_fallback=True)


@pytest.mark.parametrize("name", ["add_", "addcdiv_"])
def test_one_graph_also_under_fullgraph(name: str) -> None:
    for compile in (gradc.compile, lambda f: gradc.compile(f, fullgraph=True)):
        torch._dynamo.reset()
        gradc.counters.clear()
        run = compile(CALLS[name])
        for rate in (0.1, 0.2, 0.3):
            run(torch.ones(4), torch.ones(4), torch.tensor(rate))
        assert gradc.counters["stats"]["unique_graphs"] == 1
        assert not gradc.counters["uncompiled"] and not gradc.counters["fallbacks"]


def test_where_gradients_are_recorded_eager_makes_the_call() -> None:
    def step(compile: Any, p: Tensor, g: Tensor) -> Any:
        run, results = compile(lambda p, g, rate: p.sin().add_(g, alpha=rate).cos()), []
        for rate in (torch.tensor(0.1), torch.tensor(0.3)):
            results.append(run(p, g, rate))
            results[-1].sum().backward()
        return results

    check(step, leaf(5), leaf(5), allow_fallback=True)


def test_what_backward_reads_of_before_is_found_changed() -> None:
    def step(compile: Any, p: Tensor, g: Tensor) -> Any:
        def update(p: Tensor, g: Tensor, rate: Tensor) -> None:
            with torch.no_grad():
                p.add_(g, alpha=rate)

        run = compile(update)
        run(p, g, torch.tensor(0.1))
        loss = (p * p.sin()).sum()
        run(p, g, torch.tensor(0.2))
        loss.backward()

    check(step, leaf(5), constant(5))


def test_what_backward_reads_of_the_same_graph_is_found_changed() -> None:
    def step(compile: Any, p: Tensor, g: Tensor) -> Any:
        def update(p: Tensor, g: Tensor, rate: Tensor) -> Any:
            loss, other = (p * p.sin()).sum(), (p * 2).sum()
            with torch.no_grad():
                p.add_(g, alpha=rate)
            return loss, other

        loss, other = compile(update)(p, g, torch.tensor(0.1))
        other.backward()
        loss.backward()

    check(step, leaf(5), constant(5), allow_fallback=True)
