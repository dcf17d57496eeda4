"""Where all is as usual, no Python runs in a native step; whatever is not as usual has its effect at the next step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gradc
from gradc import native
from gradc.bits import same_bits
from tests.python_calls import python_of

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))

KINDS = [optim.Adam, optim.AdamW, optim.SGD, optim.RMSprop, optim.Adagrad, optim.Adadelta, optim.Adamax]


def made(kind: Any, num_groups: int = 2) -> Any:
    torch.manual_seed(0)
    return kind([{"params": [nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(17))]} for _ in range(num_groups)], lr=0.1)


def give_gradients(optimizer: Any, number: int) -> None:
    for param in (param for group in optimizer.param_groups for param in group["params"]):
        param.grad = torch.cos(param.detach() * (number + 1))


def left(optimizer: Any) -> list[Any]:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return [[param, param._version, *optimizer.state[param].values()] for param in params]


@pytest.mark.parametrize("kind", KINDS)
def test_no_python_runs(kind: Any) -> None:
    optimizer = gradc.compile(made(kind))
    before = gradc.counters["optim"]["native steps"]
    for number in range(6):
        give_gradients(optimizer, number)
        names = python_of(optimizer.step)
    assert names == ["call"]  # gradc's own layer, which asks
    assert gradc.counters["optim"]["native steps"] == before + 12


def test_no_python_runs_in_a_compiled_step() -> None:
    net = nn.Linear(3, 3)
    optimizer = optim.Adam(net.parameters())

    @gradc.compile(options={"compare_with_eager": False})
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    for _ in range(4):
        step(torch.ones(2, 3))
    names = python_of(lambda: step(torch.ones(2, 3)))
    assert not {"inner", "wrapper", "native_zero_grad", "_run", "_update_first"} & set(names)


class Functions(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Calls(TorchDispatchMode):
    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(op)
        return op(*args, **(kwargs or {}))


seen: list[Any] = []


@contextlib.contextmanager
def removed(handle: Any) -> Iterator[None]:
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(handle.remove)
        yield


def halved(optimizer: Any, *_: Any) -> None:
    for param in optimizer.param_groups[0]["params"]:
        param.grad.mul_(0.5)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


def reading_twice_as_much(optimizer: Any) -> Any:
    original = type(optimizer)._init_group

    def init_group(self: Any, group: Any, *lists: Any) -> Any:
        found = original(self, group, *lists)
        lists[1][:] = [grad * 2 for grad in lists[1]]
        return found

    return replaced(type(optimizer), "_init_group", init_group)


def one_parameter_in_two_groups(optimizer: Any) -> Any:
    optimizer.param_groups[1]["params"].append(optimizer.param_groups[0]["params"][0])
    return contextlib.nullcontext()


AROUND: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda optimizer: contextlib.nullcontext(),
    "hook": lambda optimizer: removed(optimizer.register_step_pre_hook(halved)),
    "hook behind": lambda optimizer: removed(optimizer.register_step_post_hook(halved)),
    "hook of all": lambda optimizer: removed(register_optimizer_step_pre_hook(halved)),
    "hook of all behind": lambda optimizer: removed(register_optimizer_step_post_hook(halved)),
    "function mode": lambda optimizer: Functions(),
    "dispatch mode": lambda optimizer: Calls(),
    "profiler": lambda optimizer: torch.profiler.profile(),
    "another way of reading": reading_twice_as_much,
    "one parameter in two groups": one_parameter_in_two_groups,
    "inference mode": lambda optimizer: torch.inference_mode(),
    "gradients": lambda optimizer: torch.enable_grad(),
}


def trained(optimizer: Any, around: Callable[[Any], Any]) -> list[Any]:
    for number in range(9):
        give_gradients(optimizer, number)
        with around(optimizer) if number in (4, 5) else contextlib.nullcontext():
            optimizer.step()
    return left(optimizer)


@pytest.mark.parametrize("kind", [optim.Adam, optim.SGD])
@pytest.mark.parametrize("name", AROUND)
def test_what_is_around_has_its_effect(kind: Any, name: str) -> None:
    results = [trained(optimizer, AROUND[name]) for optimizer in (made(kind), gradc.compile(made(kind)))]
    assert same_bits(*results)


def test_optimizers_come_and_go() -> None:
    results = []
    for compile in (lambda optimizer: optimizer, gradc.compile):
        result, kept = [], [compile(made(optim.Adam)) for _ in range(3)]
        for number in range(90):
            for optimizer in [*kept, compile(made(optim.Adam, num_groups=1))]:
                for own in range(3 if optimizer not in kept else 1):
                    give_gradients(optimizer, number + own)
                    optimizer.step()
                result = left(optimizer)
        results.append([result, *map(left, kept)])
    assert same_bits(*results)
