"""Compiling stops when its time is spent, and goes on when there is more. Meanwhile the rest runs eagerly, counted."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
import threading
import time
import types
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc.bits import same_bits
from gradc.errors import ConfigError
from gradc.journal import listening
from gradc.policy import budget, progress
from gradc.policy.budget import Budget, Clock, Purse
from gradc.torch_private.dynamo import Uncompiled


@dataclasses.dataclass
class Hands:
    """A clock that is set by hand: whatever is compiled takes ``each`` seconds."""

    each: float = 1.0
    has_worked: float = 0.0
    has_passed: float = 0.0

    def worked(self) -> float:
        self.has_worked += self.each / 2
        return 2 * self.has_worked

    def passed(self) -> float:
        return self.has_passed


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hands]:
    made = Hands()
    monkeypatch.setattr(budget, "CLOCK", Clock(made.worked, made.passed))
    gradc.reset()
    yield made
    gradc.reset()


def clocked(seconds: float | None, hands: Hands) -> Budget:
    return Budget(Purse(seconds, clock := Clock(hands.worked, hands.passed)), "step", clock)


def one() -> None: ...


def another() -> None: ...


ONE, ANOTHER = one.__code__, another.__code__


def spend(purse: Budget, code: types.CodeType = ONE) -> None:
    with purse.spending(code):
        pass


class Breaking(nn.Module):
    """Three functions that Dynamo compiles one by one, between graph breaks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).tanh()
        torch._dynamo.graph_break()
        z = self.second(y).sin()
        torch._dynamo.graph_break()
        return (z * y).sum()


def grads(module: nn.Module, x: Tensor) -> list[Tensor]:
    loss = module(x)
    return [loss.detach(), *torch.autograd.grad(loss, list(module.parameters()))]


def num_refused() -> int:
    return gradc.counters["uncompiled"]["compile budget"]


def num_regions() -> int:
    return gradc.counters["stats"]["unique_graphs"]


def test_seconds_are_spent_and_a_tenth_of_the_time_is_added() -> None:
    hands = Hands()
    purse = clocked(2.0, hands)
    spend(purse)
    assert purse.allows(ONE)
    spend(purse)
    assert not purse.allows(ONE) and purse.spent == 2.0
    hands.has_passed = 5.0
    assert purse.allows(ONE)
    hands.has_passed = 1000.0
    for _ in range(2):
        assert purse.allows(ONE)
        spend(purse)
    assert not purse.allows(ONE)


def test_a_new_target_finds_what_the_others_left() -> None:
    purse = Purse(2.0, clock := Clock((hands := Hands(each=3.0)).worked, hands.passed))
    spend(Budget(purse, "first", clock))
    assert not Budget(purse, "second", clock).allows(ONE)


def test_debts_are_waited_out_in_ten_times_the_seconds() -> None:
    hands = Hands(each=100.0)
    purse = clocked(2.0, hands)
    spend(purse)
    hands.has_passed = 19.0
    assert not purse.allows(ANOTHER)
    hands.has_passed = 21.0
    assert purse.allows(ANOTHER)


def test_what_was_compiled_before_waits_for_half_of_what_it_cost() -> None:
    hands = Hands(each=1.8)
    purse = clocked(2.0, hands)
    spend(purse)
    assert purse.allows(ANOTHER) and not purse.allows(ONE)
    hands.has_passed = 6.0
    assert not purse.allows(ONE)
    hands.has_passed = 8.0
    assert purse.allows(ONE)


def test_what_cost_more_than_there_may_be_waits_until_all_is_there() -> None:
    hands = Hands(each=100.0)
    purse = clocked(2.0, hands)
    spend(purse)
    hands.has_passed = 39.0
    assert purse.allows(ANOTHER) and not purse.allows(ONE)
    hands.has_passed = 41.0
    assert purse.allows(ONE)


def test_what_passes_while_something_is_compiled_adds_nothing() -> None:
    hands = Hands()
    purse = clocked(2.0, hands)
    for _ in range(2):
        with purse.spending(ONE):
            hands.has_passed += 1000.0  # on a machine that others use
    assert not purse.allows(ONE)


def test_what_is_compiled_inside_of_a_capture_is_paid_for_by_its_own_purse() -> None:
    """Not by the capture's; its time had been nobody's loss, and so was that of the next."""
    hands, captured = Hands(each=0.0), list[float]()
    purse = clocked(2.0, hands)
    before = budget.seconds_paid()
    with budget._metered(captured.append, Clock(hands.worked, hands.passed)):
        hands.has_worked += 0.5
        with purse.spending(ONE):
            hands.has_worked += 1.0
        hands.has_worked += 0.25
    assert purse.spent == 2.0 and captured == [1.5] and budget.seconds_paid() - before == 3.5


def test_no_limit() -> None:
    purse = clocked(None, Hands(each=1e9))
    spend(purse)
    assert purse.allows(ONE)


def test_what_is_left_runs_eagerly_until_there_is_more(hands: Hands) -> None:
    module, x = Breaking(), torch.randn(2, 3)
    expected = grads(module, x)
    compiled = gradc.compile(module, options={"compile_seconds": 1.5})
    assert all(map(same_bits, grads(compiled, x), expected))
    assert (num_regions(), num_refused()) == (2, 1)
    assert all(map(same_bits, grads(compiled, x), expected))
    assert (num_regions(), num_refused()) == (2, 2)
    hands.has_passed = 100.0
    assert all(map(same_bits, grads(compiled, x), expected))
    assert (num_regions(), num_refused()) == (3, 2)


def test_what_is_refused_is_named_with_advice(hands: Hands) -> None:
    compiled = gradc.compile(Breaking(), options={"compile_seconds": 0.5})
    with listening() as events:
        compiled(torch.randn(2, 3))
    [found] = [event.what for event in events if isinstance(event.what, Uncompiled) and event.what.kind == "compile budget"]
    assert found.detail == "Breaking has taken 1.0 s to compile (functions: 1, calls in their graphs: 2)"
    assert "test_budget.py" in found.where and "compile_seconds" in found.advice


def test_what_is_compiled_stays_so_inside_of_what_is_refused(hands: Hands) -> None:
    inner = Breaking().second

    def first(x: Tensor) -> Tensor:
        return inner(x).sum()

    def second(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return first(x) + 1

    compiled, x = gradc.compile(lambda f, x: f(x), options={"compile_seconds": 0.5}), torch.randn(2, 3)
    assert same_bits(compiled(first, x), first(x)) and num_refused() == 0
    assert same_bits(compiled(second, x), second(x)) and num_refused() == 1


def test_fullgraph_knows_no_budget(hands: Hands) -> None:
    hands.each = 1e9
    compiled = gradc.compile(Breaking().first, fullgraph=True, options={"compile_seconds": 1.0})
    for rows in (2, 3, 4):
        compiled(torch.randn(rows, 3))
    assert num_refused() == 0


def test_reset_refills(hands: Hands) -> None:
    compiled, x = gradc.compile(Breaking(), options={"compile_seconds": 1.5}), torch.randn(2, 3)
    compiled(x)
    gradc.reset()
    compiled(x)
    assert (num_regions(), num_refused()) == (2, 1)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_one_line_on_a_terminal_when_it_takes_long(is_terminal: bool, hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_EVERY", 60.0)  # or a busy machine is told of while one function is compiled, too
    gradc.compile(Breaking())(torch.randn(2, 3))
    line = "gradc: compiling Breaking has taken 3.0 s so far (functions: 3)\n"
    assert stream.getvalue() == (line if is_terminal else "")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_line_on_a_terminal_while_one_function_is_compiled(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_EVERY", 0.01)
    monkeypatch.setattr(budget, "_LONG", 0.05)
    threads = threading.active_count()
    with Budget(Purse(None), "step").spending(ONE):
        assert threading.active_count() == threads + is_terminal
        time.sleep(0.5)
        told = stream.getvalue().splitlines()
    assert threading.active_count() == threads
    assert (3 <= len(told) <= 5) if is_terminal else not told  # at 0.05 s, and whenever that has doubled
    assert all(re.fullmatch(r"gradc: compiling step has taken 0\.\d s so far \(functions: 0\)", line) for line in told)


@pytest.mark.parametrize("seconds", [0, -1.0, "long", True])
def test_seconds_that_are_none(seconds: object) -> None:
    with pytest.raises(ConfigError, match="compile_seconds"):
        gradc.compile(nn.Linear(1, 1), options={"compile_seconds": seconds})
    with pytest.raises(ConfigError, match="compile_seconds"):
        gradc.config.patch(compile_seconds=seconds)


def test_all_that_a_process_compiles_is_paid_from_one_purse(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_purses", {})
    with gradc.config.patch(compile_seconds=1.5):
        first, second = gradc.compile(Breaking()), gradc.compile(Breaking().first)
        own = gradc.compile(Breaking().first, options={"compile_seconds": 9.0})
    x = torch.randn(2, 3)
    first(x)
    assert (num_regions(), num_refused()) == (2, 1)
    second(x)
    assert (num_regions(), num_refused()) == (2, 2)
    own(x)
    assert (num_regions(), num_refused()) == (3, 2)


def test_what_lies_in_something_that_is_paid_for_is_paid_for_once(hands: Hands) -> None:
    taken, purse, before = list[float](), clocked(None, hands), budget.seconds_paid()
    with purse.spending(ONE), budget.paid(taken.append):
        pass
    assert (purse.spent, budget.seconds_paid() - before, taken) == (2.0, 3.0, [1.0])
