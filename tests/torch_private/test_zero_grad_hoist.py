"""``optimizer.zero_grad()`` at the beginning of a step is called in the step's own frame, before its graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.checkpoint import checkpoint

import gradc
from tests.oracle import check, constant
from tests.python_calls import resumed_in

OPTIONS = {"compare_with_eager": False}
Step = Callable[[Tensor], Any]


class Noting(optim.SGD):
    """An optimizer whose ``zero_grad`` does more than torch's."""

    num_cleared = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.num_cleared += 1
        super().zero_grad(set_to_none)


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1))
        self.optimizer = optim.SGD(self.net.parameters(), lr=0.1)
        self.noting = Noting(self.net.parameters(), lr=0.1)
        self.num_steps = 0

    def loss(self, x: Tensor) -> Tensor:
        return self.net(x).square().mean()

    @property
    def weight(self) -> Tensor:
        return next(self.net.parameters())


def first(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        t.optimizer.zero_grad()
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss

    return step


def first_with_a_keyword(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        t.optimizer.zero_grad(set_to_none=True)
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss

    return step


def two_of_them(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        for optimizer in (t.optimizer, t.optimizer):
            optimizer.zero_grad(True)
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss

    return step


def behind_the_mode(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        t.net.train()
        t.optimizer.zero_grad()
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss

    return step


def in_a_function(t: Training) -> Step:
    def clear() -> None:
        t.optimizer.zero_grad()

    def step(x: Tensor) -> Tensor:
        clear()
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss

    return step


IN_ONE_FRAME = (first, first_with_a_keyword, two_of_them, behind_the_mode, in_a_function)


def writes_zeros(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        t.optimizer.zero_grad(set_to_none=False)
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss

    return step


def more_than_torchs(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        t.noting.zero_grad()
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss, t.noting.num_cleared

    return step


def behind_a_read(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        gradient = t.weight.grad
        t.optimizer.zero_grad()
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss, gradient

    return step


def behind_a_question(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        had = t.weight.grad is not None
        t.optimizer.zero_grad()
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss, had

    return step


def before_a_read(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        t.optimizer.zero_grad()
        has = t.weight.grad is not None
        x = x * (3 if has else 2)
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss, has, t.weight.grad

    return step


def read_by_name(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        before = [getattr(p, "grad") for p in t.net.parameters()]  # noqa: B009
        t.optimizer.zero_grad()
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss, before

    return step


def behind_a_write(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        t.num_steps += 1
        t.weight.grad = torch.ones(3, 4)
        t.optimizer.zero_grad()
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss, t.num_steps

    return step


def before_a_write(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        t.optimizer.zero_grad()
        t.weight.grad = torch.ones(3, 4)
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss

    return step


def behind_arithmetic(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        x = x + 1
        t.optimizer.zero_grad()
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss

    return step


def in_a_mode(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        with torch.no_grad():
            t.optimizer.zero_grad()
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss

    return step


def in_a_block(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        try:
            t.optimizer.zero_grad()
            x = x * 2
        except KeyboardInterrupt:
            x = x * 3
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss

    return step


def in_a_checkpoint(t: Training) -> Step:
    def body(x: Tensor) -> Tensor:
        t.optimizer.zero_grad()
        return x.sin()

    def step(x: Tensor) -> Any:
        loss = t.loss(checkpoint(body, x, use_reentrant=False))
        loss.backward()
        t.optimizer.step()
        return loss

    return step


def another_optimizer_of_the_step(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        optimizer = optim.SGD(t.net.parameters(), lr=0.5)
        optimizer.zero_grad()
        loss = t.loss(x)
        loss.backward()
        t.optimizer.step()
        return loss

    return step


OTHERWISE = (
    writes_zeros, more_than_torchs, behind_a_read, behind_a_question, before_a_read, read_by_name, behind_a_write,
    before_a_write, behind_arithmetic, in_a_mode, in_a_block, in_a_checkpoint, another_optimizer_of_the_step,
)  # fmt: skip


def steps(make: Callable[[Training], Step]) -> Callable[..., list[Any]]:
    def run(compile: Any, x: Tensor) -> list[Any]:
        training, seen = Training(), list[Any]()
        step = compile(make(training))
        for number in range(5):
            if number == 3:
                training.weight.grad = None
            seen += [step(x), *(None if p.grad is None else p.grad.clone() for p in training.net.parameters())]
        return [*seen, *training.net.parameters(), training.noting.num_cleared]

    return run


@pytest.mark.parametrize("make", [*IN_ONE_FRAME, *OTHERWISE])
def test_as_in_eager(make: Callable[[Training], Step]) -> None:
    check(steps(make), constant(2, 4), allow_fallback=True)


@pytest.mark.parametrize("make", IN_ONE_FRAME)
def test_a_step_is_one_frame(make: Callable[[Training], Step]) -> None:
    gradc.reset()
    step = gradc.compile(make(Training()), options=OPTIONS)
    x = torch.ones(2, 4)
    step(x)
    assert not gradc.counters["uncompiled"]
    assert not resumed_in(lambda: step(x))


def test_gradients_die_before_the_graph_runs() -> None:
    training, seen = Training(), list[Any]()

    def step(x: Tensor) -> Tensor:
        training.optimizer.zero_grad()
        loss = training.loss(x)
        loss.backward()
        return loss

    compiled = gradc.compile(step, options=OPTIONS)
    x = torch.ones(2, 4)
    compiled(x)
    training.net.register_forward_pre_hook(lambda *_: seen.append(training.weight.grad))
    compiled(x)
    assert seen == [None]
