"""``optimizer.step()`` and ``zero_grad()`` of a compiled step are called without a frame, and are whatever they are by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import gradc
from gradc import native
from gradc.bits import same_bits
from tests.python_calls import python_of

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))

Compile = Callable[[Any], Any]
seen: list[str] = []


def compiled(function: Any) -> Any:
    return gradc.compile(function, options={"compare_with_eager": False})


def made(kind: Any = optim.Adam) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    return net, kind(net.parameters(), lr=0.1)


def step_of(net: nn.Module) -> Callable[[Tensor, Any], Tensor]:
    def step(x: Tensor, optimizer: Any) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def state(net: nn.Module, optimizer: Any) -> list[Any]:
    moments = [value for p in net.parameters() for value in optimizer.state.get(p, {}).values()]
    return [*(p.detach().clone() for p in net.parameters()), *(torch.as_tensor(value).clone() for value in moments)]


def test_there_are_no_frames() -> None:
    net, optimizer = made()
    step = compiled(step_of(net))
    for _ in range(4):
        step(torch.ones(2, 4), optimizer)
    assert not {"inner", "wrapper", "zero_grad", "_use_grad"} & set(python_of(lambda: step(torch.ones(2, 4), optimizer)))


class Told(optim.Adam):
    """Has a step of its own, and one that it inherits."""

    def step(self, closure: Any = None) -> Any:
        seen.append("own step")
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        seen.append("own zero_grad")
        super().zero_grad(set_to_none)


class Asked(optim.Adam):
    """Answers for what it does not have, and looks at what is asked for."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("step", "zero_grad"):
            seen.append(name)
        return super().__getattribute__(name)


class Counted(optim.Adam):
    """Counts behind what it inherits, which is called first in a step."""

    count = 0

    def zero_grad(self) -> None:
        super().zero_grad()
        self.count += 1

    def step(self) -> None:
        super().step()
        self.count += 1


class Counter:
    """No optimizer."""

    def zero_grad(self) -> None:
        seen.append("cleared")

    def step(self) -> None:
        seen.append("stepped")


def put_on_the_instance(net: nn.Module, optimizer: Any) -> Any:
    for name in ("step", "zero_grad"):
        method = getattr(optimizer, name)
        setattr(optimizer, name, lambda name=name, method=method: (seen.append(name), method()))
    return optimizer


def scheduled(net: nn.Module, optimizer: Any) -> Any:
    optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


def hooked(net: nn.Module, optimizer: Any) -> Any:
    optimizer.register_step_pre_hook(lambda *args: seen.append("before"))
    optimizer.register_step_post_hook(lambda *args: seen.append("behind"))
    return optimizer


CHANGES: list[Callable[[nn.Module, Any], Any]] = [
    put_on_the_instance,
    scheduled,
    hooked,
    lambda net, optimizer: Told(net.parameters(), lr=0.3),
    lambda net, optimizer: Asked(net.parameters(), lr=0.3),
    lambda net, optimizer: optim.SGD(net.parameters(), lr=0.3),
    lambda net, optimizer: optim.Adam(net.parameters(), lr=0.3),
    lambda net, optimizer: Counter(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_has_its_effect_at_the_next_step(change: Callable[[nn.Module, Any], Any]) -> None:
    def run(compile: Compile) -> list[Any]:
        seen.clear()
        net, first = made()
        step, found = compile(step_of(net)), []
        for optimizer in [first] * 4 + [change(net, first)] * 3 + [first] * 2:
            found += [step(torch.ones(2, 4), optimizer), *state(net, first), len(seen)]
        return [*found, list(seen)]

    assert same_bits(run(compiled), run(lambda step: step))


@pytest.mark.parametrize("kind", [Told, Asked, Counted])
def test_a_class_of_the_users(kind: Any) -> None:
    def run(compile: Compile) -> list[Any]:
        seen.clear()
        net, optimizer = made(kind)
        step = compile(step_of(net))
        found = [[step(torch.ones(2, 4), optimizer), *state(net, optimizer)] for _ in range(5)]
        return [*found, list(seen), getattr(optimizer, "count", None)]

    assert same_bits(run(compiled), run(lambda step: step))


def test_methods_of_the_class_that_are_replaced_later(monkeypatch: pytest.MonkeyPatch) -> None:
    net, optimizer = made()
    step = compiled(step_of(net))
    for _ in range(4):
        step(torch.ones(2, 4), optimizer)
    before = state(net, optimizer)
    monkeypatch.setattr(optim.Adam, "step", lambda self: seen.append("another step"))
    seen.clear()
    step(torch.ones(2, 4), optimizer)
    assert seen == ["another step"]
    assert same_bits(state(net, optimizer), before)
    monkeypatch.setattr(optim.Optimizer, "zero_grad", lambda self: seen.append("another zero_grad"))
    step(torch.ones(2, 4), optimizer)
    assert seen == ["another step", "another zero_grad", "another step"]


def test_one_of_two_that_is_chosen_there() -> None:
    def run(compile: Compile) -> list[Any]:
        net, adam = made()
        sgd, found = optim.SGD(net.parameters(), lr=0.5), []

        @compile
        def step(x: Tensor, is_first: bool) -> Tensor:
            adam.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            (adam if is_first else sgd).step()
            (sgd if is_first else adam).zero_grad()
            return loss.detach()

        for number in range(8):
            found += [step(torch.ones(2, 4), number % 3 > 0), *state(net, adam)]
        return found

    assert same_bits(run(compiled), run(lambda step: step))


def test_an_error_of_the_step_is_the_callers() -> None:
    net, optimizer = made()
    step = compiled(step_of(net))
    for _ in range(4):
        step(torch.ones(2, 4), optimizer)
    optimizer.register_step_pre_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step(torch.ones(2, 4), optimizer)
    with pytest.raises(AttributeError, match="zero_grad"):
        step(torch.ones(2, 4), object())
