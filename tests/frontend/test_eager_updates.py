"""What runs eagerly, since that is faster, updates natively all the same; eager's bits, and the optimizer as it was."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LinearLR

import gradc
from gradc.bits import same_bits
from gradc.frontend.faster import Faster
from gradc.optim import EagerUpdates
from gradc.optim.native_step import is_native
from gradc.policy import profitability
from gradc.policy.ab_timer import Arm
from gradc.policy.budget import Budget, Purse
from tests.observe import differences, observe

CALLS = 60  # until a trial is over


class Training:
    """A small model, its optimizer, and the step of both."""

    def __init__(self, kind: Callable[..., Optimizer] = AdamW, every: int = 1) -> None:
        torch.manual_seed(0)
        self.model, self.number, self.every = nn.Linear(3, 2), 0, every
        self.optimizer = kind(self.model.parameters(), lr=0.1)

    def step(self) -> Tensor:
        self.number += 1
        loss = self.model(torch.arange(3.0)).square().sum()
        loss.backward()
        if self.number % self.every == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()

    def seen(self) -> Any:
        return observe((self.model, self.optimizer), {}, None, None)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Training], Faster]:
    """A training's step as a ``Faster`` whose compiled arm is its eager one, and slower by a clock that is set by hand."""
    now = [0.0]
    monkeypatch.setattr(profitability, "CLOCK", lambda: now[0])
    monkeypatch.setattr(profitability, "trial_clock", lambda: lambda: now[0])
    gradc.reset()

    def made(training: Training) -> Faster:
        def taking(seconds: float) -> Callable[[], Tensor]:
            def call() -> Tensor:
                now[0] += seconds
                return training.step()

            return call

        return Faster(taking(2.0), taking(1.0), "step", Budget(Purse(None), "step"))

    return made


def num_native() -> int:
    return gradc.counters["optim"]["native steps"]


def is_eager(faster: Faster) -> bool:
    return faster.decisions[0].chosen is Arm.EAGER


@pytest.mark.parametrize("kind", [AdamW, SGD])
def test_updates_are_native_where_eager_is_chosen(kind: type[Optimizer], slow: Any) -> None:
    theirs, ours = Training(kind), Training(kind)
    faster = slow(ours)
    for _ in range(CALLS):
        assert same_bits(faster(), theirs.step())
        assert not differences(theirs.seen(), ours.seen())
    assert is_eager(faster) and is_native(ours.optimizer)
    before = num_native()
    faster()
    assert num_native() == before + 1


def test_what_is_compiled_meets_the_optimizer_as_it_was(slow: Any) -> None:
    training = Training()
    met: list[tuple[Any, ...]] = []
    faster = slow(training)

    def noting(arm: Arm, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def noted() -> Tensor:
            met.append((arm, *vars(training.optimizer)))
            return call()

        return noted

    faster._compiled, faster._eager = noting(Arm.COMPILED, faster._compiled), noting(Arm.EAGER, faster._eager)
    for _ in range(CALLS):
        faster()
    first = [arm for arm, *_ in met].index(Arm.EAGER)  # what the calls behind it learn from
    assert all(("step" in own) is (arm is Arm.EAGER) for arm, *own in met[first + 1 :])
    gradc.reset()
    faster()
    assert "step" not in vars(training.optimizer) and "zero_grad" not in vars(training.optimizer)


def test_a_step_that_comes_with_every_fifth_call(slow: Any) -> None:
    training = Training(every=5)
    faster = slow(training)
    for _ in range(CALLS):
        faster()
    assert is_native(training.optimizer)


def test_a_schedule_neither_warns_nor_is_lost(slow: Any) -> None:
    training = Training()
    schedule = LinearLR(training.optimizer, total_iters=500)
    noting = vars(training.optimizer)["step"]
    faster = slow(training)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(CALLS):
            faster()
            schedule.step()
    assert is_native(training.optimizer)
    faster._updates.remove()
    assert vars(training.optimizer)["step"] is noting


def test_a_schedule_that_is_made_later_is_kept(slow: Any) -> None:
    training = Training()
    faster = slow(training)
    for _ in range(CALLS):
        faster()
    LinearLR(training.optimizer, total_iters=500)
    noting = vars(training.optimizer)["step"]
    faster._updates.remove()
    assert vars(training.optimizer)["step"] is noting


class OfItsOwn(AdamW):
    def step(self, closure: Any = None) -> Any:
        self.steps_of_its_own = getattr(self, "steps_of_its_own", 0) + 1
        return super().step(closure)


class PickledWhole(AdamW):
    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


class Guarded(AdamW):
    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("step", "zero_grad"):
            raise AttributeError(name)
        super().__setattr__(name, value)


@pytest.mark.parametrize("kind", [OfItsOwn, PickledWhole, Guarded])
def test_optimizers_that_are_left_as_they_are(kind: type[Optimizer], slow: Any) -> None:
    training = Training(kind)
    faster = slow(training)
    for _ in range(CALLS):
        faster()
    assert is_eager(faster) and "step" not in vars(training.optimizer)


def test_a_step_that_somebody_gave_the_optimizer_is_called(slow: Any) -> None:
    training = Training()
    calls: list[None] = []
    of_class = type(training.optimizer).step

    def step(self: Optimizer, *args: Any) -> Any:
        calls.append(None)
        return of_class(self, *args)

    training.optimizer.step = types.MethodType(step, training.optimizer)  # type: ignore[method-assign]
    faster = slow(training)
    for _ in range(CALLS):
        faster()
    assert len(calls) == CALLS


def test_a_step_that_replaces_the_classs_is_called(slow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    calls: list[None] = []
    faster = slow(training)
    for _ in range(CALLS):
        faster()
    assert is_native(training.optimizer)
    of_class = AdamW.step

    def step(self: AdamW) -> None:
        calls.append(None)
        of_class(self)

    monkeypatch.setattr(AdamW, "step", step)
    faster()
    assert calls == [None]


def test_copies_are_as_torch_makes_them(slow: Any) -> None:
    training = Training()
    faster = slow(training)
    for _ in range(CALLS):
        faster()
    for copied in (copy.deepcopy(training.optimizer), pickle.loads(pickle.dumps(training.optimizer))):
        assert "step" not in vars(copied)
        copied.step()


def test_another_thread_is_not_noted() -> None:
    training, updates = Training(), EagerUpdates()
    with updates.noting():
        thread = threading.Thread(target=training.step)
        thread.start()
        thread.join()
    updates.install()
    assert "step" not in vars(training.optimizer)


def test_an_optimizer_is_not_kept_alive(slow: Any) -> None:
    training = Training()
    faster = slow(training)
    for _ in range(CALLS):
        faster()
    gone = weakref.ref(training.optimizer)
    training.optimizer = AdamW(training.model.parameters())
    gc.collect()
    assert gone() is None
    faster()
