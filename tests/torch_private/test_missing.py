"""What was not there at the first call, and is at the second: keys, attributes, names of a module."""

from __future__ import annotations

import collections
import contextlib
import operator
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.oracle import check, leaf

NAMES: dict[str, float] = {}


class Missing(dict[str, float]):
    def __missing__(self, key: str) -> float:
        return 3.0


class Chain:
    """Looks into one dictionary after the other."""

    def __init__(self) -> None:
        self.maps: list[dict[str, float]] = [{}, {"late": 2.0}]

    def __getitem__(self, key: str) -> float:
        for each in self.maps:
            try:
                return each[key]
            except KeyError:
                pass
        raise KeyError(key)


class Fallback:
    """Has what is in a table, as wrappers of models have what is in the model."""

    def __init__(self) -> None:
        self.table = {"late": 2.0}

    def __getattr__(self, name: str) -> float:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["table"][name]


def subscript(obj: Any, x: Tensor) -> Tensor:
    try:
        return x * obj["late"]
    except KeyError:
        return x.sin()


def suppressed(obj: Any, x: Tensor) -> Tensor:
    with contextlib.suppress(LookupError):
        return x * obj["late"]
    return x.sin()


def by_function(obj: Any, x: Tensor) -> Tensor:
    try:
        return x * operator.getitem(obj, "late")
    except KeyError:
        return x.sin()


def of_a_global(obj: Any, x: Tensor) -> Tensor:
    try:
        return x * NAMES["late"]
    except KeyError:
        return x.sin()


def attribute(obj: Any, x: Tensor) -> Tensor:
    try:
        return x * obj.late
    except AttributeError:
        return x.sin()


def by_getattr(obj: Any, x: Tensor) -> Tensor:
    try:
        return x * getattr(obj, "late")  # noqa: B009
    except AttributeError:
        return x.sin()


def of_a_module(obj: Any, x: Tensor) -> Tensor:
    try:
        return x * types.gradc_late  # type: ignore[attr-defined]
    except AttributeError:
        return x.sin()


KEYS: dict[str, Callable[[], Any]] = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": lambda: collections.defaultdict(None, early=1.0),
    "factory": lambda: collections.defaultdict(float, early=1.0),
    "__missing__": Missing,
    "ChainMap": lambda: collections.ChainMap({}, {"late": 2.0}),
    "chain": lambda: types.SimpleNamespace(chain=Chain()),
}
ATTRIBUTES: dict[str, Callable[[], Any]] = {
    "object": types.SimpleNamespace,
    "module": nn.Tanh,
    "wrapper": Fallback,
    "function": lambda: types.FunctionType((lambda: 0).__code__, {}),
}


@pytest.mark.parametrize("read", [subscript, suppressed, by_function])
@pytest.mark.parametrize("make", KEYS.values(), ids=KEYS)
def test_a_key_that_comes_later(make: Callable[[], Any], read: Callable[[Any, Tensor], Tensor]) -> None:
    """The call ran what was compiled for its absence."""

    def step(compile: Any, x: Tensor) -> Any:
        obj = make()
        table = obj.chain if isinstance(obj, types.SimpleNamespace) else obj
        run = compile(lambda x: read(table, x))
        written = table.maps[0] if hasattr(table, "maps") else table
        seen = [run(x)]
        for value in (5.0, 7.0):
            written["late"] = value
            seen.append(run(x))
        del written["late"]
        return [*seen, run(x)]

    check(step, leaf(3), allow_fallback=True)


@pytest.mark.parametrize("read", [attribute, by_getattr])
@pytest.mark.parametrize("make", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_an_attribute_that_comes_later(make: Callable[[], Any], read: Callable[[Any, Tensor], Tensor]) -> None:
    def step(compile: Any, x: Tensor) -> Any:
        obj = make()
        run = compile(lambda x: read(obj, x))
        seen = [run(x)]
        for value in (5.0, 7.0):
            obj.late = value
            seen.append(run(x))
        del obj.late
        return [*seen, run(x)]

    check(step, leaf(3), allow_fallback=True)


def test_names_that_come_later() -> None:
    def step(compile: Any, x: Tensor) -> Any:
        runs = [compile(lambda x, read=read: read(None, x)) for read in (of_a_global, of_a_module)]
        seen = [run(x) for run in runs]
        NAMES["late"] = types.gradc_late = 5.0  # type: ignore[attr-defined]
        try:
            seen += [run(x) for run in runs]
        finally:
            del NAMES["late"], types.gradc_late  # type: ignore[attr-defined]
        return [*seen, *(run(x) for run in runs)]

    check(step, leaf(3), allow_fallback=True)


@pytest.mark.parametrize("make", [dict, collections.OrderedDict, collections.Counter, collections.deque, list, set])
def test_what_is_empty_at_first(make: Callable[[], Any]) -> None:
    def step(compile: Any, x: Tensor) -> Any:
        obj, seen = types.SimpleNamespace(first=make(), other=make()), []
        run = compile(lambda x: x * 2 if obj.first or obj.other else x.sin())
        for each in (obj.other, obj.first):
            seen.append(run(x))
            each.update({"late": 1}) if isinstance(each, dict) else each.add(1) if isinstance(each, set) else each.append(1)
            seen.append(run(x))
            each.clear()
        return seen

    check(step, leaf(3), allow_fallback=True)


def linear() -> nn.Linear:
    return nn.Linear(3, 3)


def buffered() -> nn.Module:
    model = nn.BatchNorm1d(3)
    model.forward = lambda x: x * model.running_var  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(("make", "name"), [(linear, "weight"), (buffered, "running_var")])
def test_an_attribute_in_front_of_a_parameter(make: Callable[[], nn.Module], name: str) -> None:
    """What a module's own dictionary has comes before its parameters and buffers, which ``__getattr__`` finds."""

    def step(compile: Any, x: Tensor, model: Any) -> Any:
        run = compile(lambda x: model(x))
        first = run(x)
        vars(model)[name] = torch.full_like(getattr(model, name), 2.0)
        second = run(x)
        del vars(model)[name]
        return first, second, run(x)

    check(step, leaf(3, 3), make, allow_fallback=True)
