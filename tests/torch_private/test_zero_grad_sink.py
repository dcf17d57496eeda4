"""``optimizer.zero_grad()`` shortly before ``loss.backward()`` is called in the step's own frame, behind its graph."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import gradc
from gradc import native
from tests.oracle import check, constant
from tests.python_calls import resumed_in

OPTIONS = {"compare_with_eager": False}
Step = Callable[[Tensor], Any]


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1))
        self.optimizer = optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.other = optim.SGD(self.net.parameters(), lr=0.2)
        self.is_cautious = True
        self.last: Any = None

    def loss(self, x: Tensor) -> Tensor:
        return self.net(x).square().mean()

    @property
    def weight(self) -> Tensor:
        return next(self.net.parameters())

    @property
    def gradient(self) -> Tensor:
        assert self.weight.grad is not None
        return self.weight.grad


def between(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        t.optimizer.zero_grad()
        loss.backward()
        t.optimizer.step()
        return loss.detach()

    return step


def with_a_keyword(t: Training) -> Step:
    def step(x: Tensor) -> float:
        loss = t.loss(x)
        t.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        t.optimizer.step()
        return loss.item()

    return step


def of_another_optimizer(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        t.other.zero_grad()
        loss = t.loss(x) + t.loss(x * 2)
        t.optimizer.zero_grad()
        loss.backward()
        t.optimizer.step()
        return loss.detach()

    return step


def behind_a_block(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        with torch.autograd.profiler.record_function("forward"):
            loss = t.loss(x)
        t.optimizer.zero_grad()
        loss.backward()
        t.optimizer.step()
        return loss.detach()

    return step


def of_an_argument(t: Training) -> Callable[..., Any]:
    def step(x: Tensor, optimizer: Any = t.optimizer) -> Tensor:
        first, optimizer = optimizer, None
        loss = t.loss(x)
        first.zero_grad()
        loss.backward()
        first.step()
        return loss.detach()

    return step


def scaled(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        t.optimizer.zero_grad()
        (loss / 2).backward()
        t.optimizer.step()
        return loss.detach()

    return step


def of_an_attribute(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        t.last = t.loss(x)
        t.optimizer.zero_grad()
        t.last.backward()
        t.optimizer.step()
        return t.last.detach()

    return step


def beside_a_number(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        found = t.net(x)
        t.optimizer.zero_grad()
        loss = torch.mean((found - x[:, :3]) ** 2)
        ratio = -10.0 * torch.log10(loss)
        loss.backward()
        t.optimizer.step()
        return ratio.detach()

    return step


def of_two_optimizers(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        t.other.zero_grad()
        t.optimizer.zero_grad()
        loss.backward()
        t.other.step()
        t.optimizer.step()
        return loss.detach()

    return step


STRAIGHT = (between, with_a_keyword, of_another_optimizer, of_an_argument, of_two_optimizers)
IN_ONE_FRAME = (*STRAIGHT, scaled, beside_a_number)  # what else has a history goes out of the graph


def clipped(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        t.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(t.net.parameters(), 0.1)
        t.optimizer.step()
        return loss.detach()

    return step


def with_its_history(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        t.optimizer.zero_grad()
        loss.backward()
        t.optimizer.step()
        return loss

    return step


def in_a_loop(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        losses = []
        for factor in range(3):
            loss = t.loss(x * factor)
            t.optimizer.zero_grad()
            loss.backward()
            t.optimizer.step()
            losses.append(loss.detach())
        return losses

    return step


def writes_zeros(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        t.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        t.optimizer.step()
        return loss.detach()

    return step


def behind_a_read(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        had = t.weight.grad is not None
        norm = t.weight.grad.norm() if t.weight.grad is not None else x.sum()
        loss = t.loss(x) + norm
        t.optimizer.zero_grad()
        loss.backward()
        t.optimizer.step()
        return loss.detach(), had, norm

    return step


def behind_a_write(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        loss = t.loss(x)
        t.weight.grad = torch.ones(3, 4)
        t.last = loss.detach()
        t.optimizer.zero_grad()
        loss.backward()
        t.optimizer.step()
        return t.last

    return step


def of_one_of_two(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        first, second = t.loss(x), t.loss(x * 2)
        t.optimizer.zero_grad()
        first.backward()
        t.optimizer.zero_grad()
        second.backward()
        t.optimizer.step()
        return first.detach(), second.detach()

    return step


def read_in_between(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        loss = t.loss(x)
        t.optimizer.zero_grad()
        found = x.sum() if t.weight.grad is None else t.gradient.sum()
        loss.backward()
        t.optimizer.step()
        return loss.detach(), found

    return step


def set_in_between(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        t.optimizer.zero_grad()
        t.weight.grad = torch.ones(3, 4)
        loss.backward()
        t.optimizer.step()
        return loss.detach()

    return step


def set_by_a_function(t: Training) -> Step:
    """Whose name is one of torch's."""

    def norm(loss: Tensor) -> Tensor:
        t.weight.grad = torch.ones(3, 4)
        return loss * 2

    owner = types.SimpleNamespace(norm=norm)

    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        t.optimizer.zero_grad()
        loss = owner.norm(loss)
        loss.backward()
        t.optimizer.step()
        return loss.detach()

    return step


def cleared_by_the_user(t: Training) -> Step:
    """By a method of the same name, which does more than to clear."""

    class Filling:
        def zero_grad(self) -> None:
            t.weight.grad = torch.ones(3, 4)

    filling = Filling()

    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        t.optimizer.zero_grad()
        filling.zero_grad()
        loss.backward()
        t.optimizer.step()
        return loss.detach()

    return step


def cleared_with_the_module(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        t.optimizer.zero_grad()
        t.net.zero_grad()
        loss.backward()
        t.optimizer.step()
        return loss.detach()

    return step


def ended_in_between(t: Training) -> Step:
    def step(x: Tensor) -> Any:
        loss = t.loss(x)
        t.optimizer.zero_grad()
        number = loss.item()
        loss.backward()
        t.optimizer.step()
        return loss.detach(), number

    return step


def retained(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        t.optimizer.zero_grad()
        loss.backward(retain_graph=True)
        loss.backward()
        t.optimizer.step()
        return loss.detach()

    return step


def handled(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        try:
            t.optimizer.zero_grad()
            loss.backward()
        except RuntimeError:
            return x
        t.optimizer.step()
        return loss.detach()

    return step


def in_a_mode(t: Training) -> Step:
    def step(x: Tensor) -> Tensor:
        with torch.enable_grad():
            loss = t.loss(x)
            t.optimizer.zero_grad()
            loss.backward()
        t.optimizer.step()
        return loss.detach()

    return step


def in_a_function(t: Training) -> Step:
    def learn(loss: Tensor) -> None:
        t.optimizer.zero_grad()
        loss.backward()
        t.optimizer.step()

    def step(x: Tensor) -> Tensor:
        loss = t.loss(x)
        learn(loss)
        return loss.detach()

    return step


OTHERWISE = (
    behind_a_block, clipped, with_its_history, in_a_loop, writes_zeros, behind_a_read, behind_a_write, of_one_of_two,
    of_an_attribute, read_in_between, set_in_between, set_by_a_function, cleared_by_the_user, cleared_with_the_module,
    ended_in_between, retained, handled, in_a_mode,
    in_a_function,
)  # fmt: skip


def steps(make: Callable[[Training], Step]) -> Callable[..., list[Any]]:
    def run(compile: Any, x: Tensor) -> list[Any]:
        training, seen = Training(), list[Any]()
        step = compile(make(training))
        for number in range(7):
            if number == 5:
                training.weight.register_hook(lambda grad: grad * 2)
            seen += [step(x), *(None if p.grad is None else p.grad.clone() for p in training.net.parameters())]
        return [*seen, *training.net.parameters()]

    return run


@pytest.mark.parametrize("make", [*IN_ONE_FRAME, *OTHERWISE])
def test_as_in_eager(make: Callable[[Training], Step]) -> None:
    check(steps(make), constant(2, 4), allow_fallback=True)


@pytest.mark.parametrize("make", IN_ONE_FRAME)
def test_a_step_is_one_frame_and_its_loss_goes_straight_to_backward(make: Callable[[Training], Step]) -> None:
    gradc.reset()
    step = gradc.compile(make(Training()), options=OPTIONS)
    x = torch.ones(2, 4)
    step(x)
    assert not gradc.counters["uncompiled"]
    if native.is_built() and make in STRAIGHT:
        before = native.extension.StraightLoss.num_run()
        step(x)
        assert native.extension.StraightLoss.num_run() == before + 1
    assert not resumed_in(lambda: step(x))


def test_gradients_stay_where_the_forward_raises() -> None:
    def step(compile: Any, x: Tensor) -> Any:
        training = Training()

        def learn(x: Tensor, index: Tensor) -> Tensor:
            loss = training.net(x).square()[index].mean()
            training.optimizer.zero_grad()
            loss.backward()
            return loss.detach()

        run = compile(learn)
        run(x, torch.tensor([0, 1]))
        kept = training.weight.grad
        with pytest.raises(IndexError):
            run(x, torch.tensor([0, 7]))
        assert training.weight.grad is kept
        return [run(x, torch.tensor([0, 1])), training.weight.grad]

    check(step, constant(2, 4), allow_fallback=True)


def test_another_zero_grad_by_then() -> None:
    """The optimizer's class may get another method at any time."""
    calls = list[Any]()

    def step(compile: Any, x: Tensor) -> Any:
        class Own(optim.SGD):
            pass

        training = Training()
        training.optimizer = Own(training.net.parameters(), lr=0.1)
        run, seen = compile(between(training)), list[Any]()
        for number in range(6):
            if number == 3:

                def zero_grad(self: Any, set_to_none: bool = True) -> None:
                    calls.append(compile)
                    training.weight.grad = torch.ones(3, 4)

                Own.zero_grad = zero_grad  # type: ignore[method-assign]
            seen += [run(x), training.gradient.clone()]
        return seen

    check(step, constant(2, 4), allow_fallback=True)
    assert len(calls) >= 6
