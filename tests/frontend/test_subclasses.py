"""Subclasses of tensors: compiled where they are data with a name, left to Python where they run code of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.masked import masked_tensor
from torch.utils import _pytree as pytree

import gradc
from tests.compilers import COMPILERS
from tests.oracle import check, constant, leaf


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))


class Labelled(Tensor):
    """Data with the names of its columns, as in libraries for physics-informed networks."""

    labels: list[str]

    @staticmethod
    def __new__(cls: Any, x: Tensor, labels: list[str]) -> Labelled:
        made: Labelled = x.as_subclass(cls)
        return made

    def __init__(self, x: Tensor, labels: list[str]) -> None:
        self.labels = labels

    @property
    def tensor(self) -> Tensor:
        return self.as_subclass(Tensor)

    def extract(self, names: list[str]) -> Tensor:
        found = self.tensor[:, [self.labels.index(name) for name in names]].as_subclass(Labelled)
        found.labels = names
        return found


def described(value: Tensor) -> Any:
    """What may be asked of a tensor; and its data."""
    node = type(value.grad_fn).__name__ if isinstance(value, Labelled) else ""
    return type(value).__name__, getattr(value, "labels", None), value._is_view(), node, value.as_subclass(Tensor)


LABELLED: dict[str, Callable[[nn.Module, Any], Any]] = {
    "through a network": lambda net, x: net(x),
    "columns": lambda net, x: net(x.extract(["e", "b", "c", "a", "d", "f"])).tensor,
    "columns returned": lambda net, x: x.extract(["b", "a"]),
    "beside a tensor": lambda net, x: net(x).tensor * 2 + x.tensor[:, :4],
    "itself": lambda net, x: x,
    "a view": lambda net, x: x.t(),
    "a view of a view": lambda net, x: x[1:].view(-1),
    "written into": lambda net, x: (x * 2).mul_(3).add_(1),
    "a view of it written into": lambda net, x: write(x * 2),
    "several": lambda net, x: torch.cat([x, x.tensor, net(x)], 1),
    "under no_grad": lambda net, x: torch.no_grad()(lambda x: net(x).exp())(x),
    "detached": lambda net, x: net(x).detach(),
    "asked for its class": lambda net, x: net(x) * (2 if isinstance(x, Labelled) and type(x.tensor) is Tensor else 3),
    "used often": lambda net, x: x * x.sin() + x / 3 + x.tensor * 5 + (y := x.cos()) * y + y,
    "its derivative": lambda net, x: torch.autograd.grad(net(x).sin().sum(), x, create_graph=True)[0],
}


def write(x: Tensor) -> Tensor:
    x[1:].mul_(3)
    return x


@pytest.mark.parametrize("way", ["gradc", "gradc_captured"])
@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("name", LABELLED)
def test_data_with_names_is_compiled(name: str, is_leaf: bool, way: str) -> None:
    def step(compile: Any, net: nn.Module, x: Tensor) -> Any:
        given = Labelled(x.detach(), list("abcdef")).requires_grad_() if is_leaf else Labelled(x * 2, list("abcdef"))
        run, found = compile(LABELLED[name]), []
        for _ in range(2):
            out = run(net, given)
            found.append((described(out), out is given))
            if out.requires_grad:
                out.as_subclass(Tensor).square().sum().backward(retain_graph=True)
        return found, type(given.grad).__name__ if is_leaf else "", given.grad if is_leaf else None

    check(step, net, leaf(5, 6), compiler=COMPILERS[way])


class Weight(nn.Parameter):
    """A parameter with a class of its own, as quantisation and sharding make them."""


def test_a_class_of_parameters_is_compiled() -> None:
    uncompiled: dict[str, int] = {}

    def step(compile: Any, net: Any, x: Tensor) -> Any:
        net[0].weight = Weight(net[0].weight.detach())
        out = compile(net)(x)
        out.square().sum().backward()
        uncompiled.update(gradc.counters["uncompiled"])
        return out, type(out).__name__, type(net[0].weight.grad).__name__

    check(step, net, leaf(5, 6))
    assert not uncompiled


class Logging(Tensor):
    seen: list[str] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


class Scaled(Tensor):
    """A wrapper around a tensor, with a factor."""

    seen: list[str] = []

    @staticmethod
    def __new__(cls: Any, inner: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return Scaled(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(op))
        args, kwargs = pytree.tree_map_only(Scaled, lambda scaled: scaled.inner * 2, (args, kwargs or {}))
        return op(*args, **kwargs)


class Unflattened(Scaled):
    """The same, of which Dynamo cannot see the inside."""

    __tensor_flatten__ = None  # type: ignore[assignment]


def make_masked(x: Tensor) -> Tensor:
    found: Tensor = masked_tensor(x, x > 0)
    return found


@pytest.mark.parametrize("make", [lambda x: x.as_subclass(Logging), Scaled, Unflattened, make_masked])
def test_what_runs_code_of_its_own_is_left_to_python(make: Any) -> None:
    """The network before and after it is compiled; its code is called as often as in eager."""
    uncompiled: dict[str, int] = {}

    def step(compile: Any, net: nn.Module, x: Tensor, y: Tensor) -> Any:
        def function(x: Tensor, special: Tensor) -> Any:
            before = net(x.sin()).square().mean()
            found = (special + 1).sum()
            return before.exp(), found, torch.is_tensor(special), isinstance(special, Tensor)

        run, found = compile(function), []
        special = make(y)
        Logging.seen, Scaled.seen = [], []
        for _ in range(2):
            loss, summed, *asked = run(x, special)
            seen = list(Logging.seen), list(Scaled.seen)
            loss.backward()
            data = summed.get_data() if hasattr(summed, "get_data") else summed.as_subclass(Tensor)
            found.append((loss, data, type(summed).__name__, asked, seen))
        uncompiled.update(gradc.counters["uncompiled"])
        return found

    report = check(step, net, leaf(5, 6), constant(5, 6))
    assert report.num_graphs == 2
    assert set(uncompiled) == {"gradc: tensor subclass"}
