"""What is left behind the graph of a training step runs in its frame, where nothing of it is to be compiled."""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import gradc
from tests.oracle import check, constant
from tests.python_calls import resumed_in

OPTIONS = {"compare_with_eager": False}
Step = Callable[[Tensor], Any]


class Training:
    """A model, its optimizer, and what a step may have beside."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
        self.optimizer = optim.Adam(self.net.parameters())
        self.schedule = optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.no_schedule: Any = None

    def loss(self, x: Tensor) -> Tensor:
        return self.net(x).square().mean()

    def state(self) -> list[Any]:
        moments = [value for p in self.net.parameters() for value in self.optimizer.state[p].values()]
        gradients = [None if p.grad is None else p.grad.clone() for p in self.net.parameters()]
        return [*self.net.parameters(), *moments, *gradients, self.optimizer.param_groups[0]["lr"]]


def cleared_last(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        t.optimizer.zero_grad()
        return loss

    return step


def detached(t: Training) -> Step:
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss.detach(), x

    return step


def a_number(t: Training) -> Step:
    def step(x: Tensor) -> float:
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return float(loss)

    return step


def scheduled(t: Training) -> Step:
    schedule = t.schedule

    def step(x: Tensor) -> float:
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        if schedule is not None:
            schedule.step()
        value = loss.item()
        return value

    return step


def without_schedule(t: Training) -> Step:
    def step(x: Tensor) -> None:
        t.loss(x).backward()
        t.optimizer.step()
        if t.no_schedule is not None:
            t.no_schedule.step()

    return step


def two_passes(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        first, second = t.loss(x), t.loss(x * 2)
        first.backward()
        t.optimizer.step()
        second.detach()
        return second

    return step


def written_variables(t: Training) -> Step:
    def step(x: Tensor, scale: float = 2.0) -> Any:
        x = x * scale
        kept = [x, "kept"]
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return kept, loss.detach(), x, scale

    return step


def appended(t: Training) -> Step:
    losses: list[float] = []

    def step(x: Tensor) -> list[float]:
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        losses.append(loss.item())
        return losses

    return step


def counted(t: Training) -> Step:
    """Sums in an attribute, a variable of the function around and a dictionary; a line for a log; a dictionary is returned."""
    t.total, number, history = 0.0, 0, {"losses": [], "last": ""}  # type: ignore[attr-defined]

    def step(x: Tensor) -> dict[str, Any]:
        nonlocal number
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        number += 1
        t.total += loss.item() * len(x)  # type: ignore[attr-defined]
        history["losses"].append(round(float(loss), 4))  # type: ignore[attr-defined]
        history["last"] = f"{number}: {-t.total / max(number, 1):.4f}"  # type: ignore[attr-defined]
        return {"loss": loss.item(), "number": number, "all": [*history["losses"]], **history}

    return step


IN_ONE_FRAME = (cleared_last, detached, a_number, scheduled, without_schedule, two_passes, written_variables, appended)


def steps(make: Callable[[Training], Step]) -> Callable[..., list[Any]]:
    def run(compile: Any, x: Tensor) -> list[Any]:
        training = Training()
        step = compile(make(training))
        return [value for _ in range(4) for value in (step(x), *training.state())]

    return run


@pytest.mark.parametrize("make", IN_ONE_FRAME)
def test_a_step_ends_in_its_own_frame(make: Callable[[Training], Step]) -> None:
    check(steps(make), constant(2, 4), allow_fallback=True)
    training = Training()
    step = gradc.compile(make(training), options=OPTIONS)
    x = torch.ones(2, 4)
    step(x)
    assert not resumed_in(lambda: step(x))


def calculates(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return (loss * 2).exp()

    return step


def clips(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(t.net.parameters(), 0.1)
        t.optimizer.step()
        return norm

    return step


def handles_errors(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        loss = t.loss(x)
        loss.backward()
        try:
            t.optimizer.step()
        except ValueError:
            return None
        return loss

    return step


def repeats(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        loss = t.loss(x)
        loss.backward()
        for _ in range(2):
            t.optimizer.step()
        return loss

    return step


def has_a_function(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return lambda: loss

    return lambda x: step(x)()


def adds_tensors(t: Training) -> Step:
    last = torch.zeros(())

    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return last + loss.detach()

    return step


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(()))
        self.recent = [torch.zeros(())]

    @property
    def last(self) -> Tensor:
        return self.recent[-1]


def averages_in_a_buffer(t: Training) -> Step:
    averaging: Any = Averaging()

    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        averaging.average = 0.9 * averaging.average
        return averaging.average

    return step


def reads_a_list_of_tensors(t: Training) -> Step:
    averaging = Averaging()

    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return 0.5 + averaging.recent[0]

    return step


def calculates_with_what_the_graph_ended_at(t: Training) -> Step:
    """Found by the tests of checkpoints: what such a call gives may be a tensor."""

    @torch.compiler.disable
    def outside(loss: Tensor) -> Tensor:
        return loss * 2

    def step(x: Tensor) -> Tensor:
        return 3 * outside(t.loss(x)) + 1

    return step


def reads_a_property(t: Training) -> Step:
    averaging = Averaging()

    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return -averaging.last

    return step


def calls_a_function(t: Training) -> Step:
    history = types.SimpleNamespace(append=lambda value: value * 2)

    def step(x: Tensor) -> Any:
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return history.append(loss.detach())

    return step


COMPILED_BEHIND = (
    calculates, clips, handles_errors, repeats, adds_tensors, averages_in_a_buffer, reads_a_list_of_tensors, reads_a_property,
    calculates_with_what_the_graph_ended_at, calls_a_function,
)  # fmt: skip


@pytest.mark.parametrize("make", COMPILED_BEHIND)
def test_what_is_left_to_compile_is_compiled(make: Callable[[Training], Step]) -> None:
    check(steps(make), constant(2, 4), allow_fallback=True)
    training = Training()
    step = gradc.compile(make(training), options=OPTIONS)
    x = torch.ones(2, 4)
    step(x)
    assert resumed_in(lambda: step(x))


@pytest.mark.parametrize("make", [has_a_function, counted])
def test_variables_of_inner_functions(make: Callable[[Training], Step]) -> None:
    check(steps(make), constant(2, 4), allow_fallback=True)


def test_numbers_of_a_log_are_no_guards() -> None:
    """A dictionary of lists, sums and lines: the step's one graph is all there is."""
    training, history = Training(), {"losses": list[float](), "line": ""}

    def step(x: Tensor) -> dict[str, float]:
        loss = training.loss(x)
        loss.backward()
        training.optimizer.step()
        history["losses"].append(loss.item())  # type: ignore[attr-defined]
        history["line"] = f"{len(history['losses'])}: {history['losses'][-1]:.3f}"  # type: ignore[index]
        return {"loss": loss.item()}

    gradc.reset()
    run = gradc.compile(step, options=OPTIONS)
    for _ in range(4):
        run(torch.ones(2, 4))
    assert gradc.counters["stats"]["unique_graphs"] == 1 and not gradc.counters["uncompiled"]
    assert not resumed_in(lambda: run(torch.ones(2, 4)))


def test_what_was_an_optimizer_may_be_anything_in_a_later_call() -> None:
    """The end of a step has no guards: it runs as Python has it."""

    class Counter:
        def __init__(self) -> None:
            self.num_steps = 0

        def step(self) -> None:
            self.num_steps += 1

    def run(compile: Any, x: Tensor) -> list[Any]:
        training, counter = Training(), Counter()

        @compile
        def step(x: Tensor) -> Tensor:
            loss = training.loss(x)
            loss.backward()
            training.optimizer.step()
            return loss.detach()

        seen = [step(x)]
        optimizer, training.optimizer = training.optimizer, counter  # type: ignore[assignment]
        seen += [step(x), step(x)]
        training.optimizer = optimizer
        return [*seen, step(x), counter.num_steps, *training.state()]

    check(run, constant(2, 4), allow_fallback=True)


def test_a_list_that_is_no_constant() -> None:
    """Asked for its value while the rest of a function was read, a variable of Dynamo's raised: the function ran eagerly."""
    objects = [types.SimpleNamespace(factor=2.0), types.SimpleNamespace(factor=3.0)]

    @gradc.compile
    def run(objects: Any, x: Tensor) -> Any:
        objects[0].factor = 9.0
        return x * objects[1].factor

    assert run(objects, torch.ones(3)).tolist() == [3.0] * 3
    assert "tracing failed" not in {**gradc.counters["uncompiled"], **gradc.counters["fallbacks"]}


def test_an_error_is_where_it_is_in_the_program() -> None:
    training = Training()

    def step(x: Tensor) -> Tensor:
        loss = training.loss(x)
        loss.backward()
        training.optimizer.step()
        return loss

    def refuse(*_: Any) -> None:
        raise ValueError("no step")

    training.optimizer.register_step_pre_hook(refuse)
    lines = []
    for run in (step, gradc.compile(step, options=OPTIONS), gradc.compile(step, options=OPTIONS)):
        with pytest.raises(ValueError, match="no step") as raised:
            run(torch.ones(2, 4))
        lines.append([entry.lineno for entry in traceback.extract_tb(raised.value.__traceback__) if entry.name == "step"][-1])
    assert lines == [lines[0]] * 3


def test_what_is_left_to_compile_is_compiled_once() -> None:
    """A loss that had gone straight to backward required no gradient any more, unlike that of the first call."""
    training = Training()

    def step(x: Tensor) -> Any:
        loss = training.loss(x)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        return (x * 2).exp(), loss.item()

    gradc.reset()
    run = gradc.compile(step, options=OPTIONS)
    for _ in range(4):
        run(torch.ones(2, 4))
    assert gradc.counters["stats"]["unique_graphs"] == 2
