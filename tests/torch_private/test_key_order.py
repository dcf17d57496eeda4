"""Dictionaries with the same keys in another order than at the first call; ``move_to_end`` is no insertion."""

from __future__ import annotations

import collections
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from tests.oracle import check, leaf


class Table(OrderedDict[str, Any]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.factor = 3


def over_items(table: Any, x: Tensor) -> Any:
    for name, value in table.items():
        x = x * value if name == "first" else (x + value).sin()
    return x


def first_key(table: Any, x: Tensor) -> Any:
    return next((x * len(name) for name in table), x)


def last_value(table: Any, x: Tensor) -> Any:
    return x.cos() * next(reversed(table.values()))


def as_a_list(table: Any, x: Tensor) -> Any:
    return x * 2 if [*table].index("first") == 0 else x.tanh()


def compared(table: Any, x: Tensor) -> Any:
    return x * 2 if table == OrderedDict(first=2.0, other=0.5, third=4.0) else x.tanh()


def copied(table: Any, x: Tensor) -> Any:
    other = OrderedDict(table)
    other["late"] = 1.0
    return x * next(iter(other.values())), list(other)


def popped(table: Any, x: Tensor) -> Any:
    name, value = table.popitem(last=False)
    return x * value, name, list(table)


READS = [over_items, first_key, last_value, as_a_list, compared, copied, popped]


@pytest.mark.parametrize("kind", [OrderedDict, Table])
@pytest.mark.parametrize("read", READS)
def test_the_order_at_the_call_counts(read: Callable[[Any, Tensor], Any], kind: type) -> None:
    """That of the first call held for all: other values and gradients, silently."""

    def step(compile: Any, x: Tensor) -> Any:
        run, seen = compile(read), []
        for moved in ((), ("first",), ("other", "first"), (), ("first",)):
            table = kind(first=2.0, other=0.5, third=4.0)
            for name in moved:
                table.move_to_end(name)
            seen.append(run(table, x))
        return seen

    check(step, leaf(3), allow_fallback=True)


def of_keywords(x: Tensor, **inputs: Any) -> Any:
    return torch.stack([x * value for value in inputs.values()])


LISTS: dict[str, Callable[[Any, Tensor], Any]] = {
    "unpacked": lambda d, x: x * d[[*d][0]],  # noqa: RUF015
    "list": lambda d, x: x * 2 if list(d) == ["first", "other"] else x.sin(),
    "tuple": lambda d, x: x * d[tuple(d)[0]],  # noqa: RUF015
    "keywords": lambda d, x: of_keywords(x, **d),
    "arguments": lambda d, x: (lambda a, b: x * d[a])(*d),
    "merged": lambda d, x: x * next(iter({**d}.values())),
    "or": lambda d, x: x * next(iter((d | {"late": 1.0}).values())),
    "update": lambda d, x: [made := {}, made.update(d), x * next(iter(made.values()))][-1],
    "extend": lambda d, x: [made := [], made.extend(d), x * d[made[0]]][-1],
    "+=": lambda d, x: [made := ["none"], made.__iadd__(d), x * d[made[1]]][-1],
    "deque": lambda d, x: x * d[collections.deque(d)[0]],
    "fromkeys": lambda d, x: x * d[next(iter(dict.fromkeys(d)))],
    "sorted": lambda d, x: x * d[sorted(d, key=lambda _: 0)[0]],
    "max": lambda d, x: x * d[max(d, key=lambda _: 0)],
    "join": lambda d, x: x * ",".join(d).index("other"),
    "str": lambda d, x: x * str(d).index("other"),
    "iter": lambda d, x: x * d[next(iter(d))],
    "reversed": lambda d, x: x * d[next(reversed(d))],
    "zip": lambda d, x: x * d[next(zip(d, d, strict=True))[0]],
    "comprehension": lambda d, x: x * next(iter({name: value for name, value in d.items()}.values())),  # noqa: C416
    "values": lambda d, x: x * [*d.values()][0],  # noqa: RUF015
    "copy": lambda d, x: x * d.copy().popitem()[1],
}


@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("read", LISTS.values(), ids=LISTS)
def test_keys_in_another_order(read: Callable[[Any, Tensor], Any], kind: type) -> None:
    """They were listed in the order of the first call: as keyword arguments, other inputs than the caller's."""

    def step(compile: Any, x: Tensor) -> Any:
        run = compile(read)
        return [run(kind(given), x) for given in ({"first": 2.0, "other": 3.0}, {"other": 3.0, "first": 2.0}) * 2]

    check(step, leaf(3), allow_fallback=True)


def test_batches_in_another_order() -> None:
    """As a model is called: ``model(**batch)``."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor, **inputs: Tensor) -> Tensor:
            for value in inputs.values():
                x = self.linear(x * value).tanh()
            return x

    def step(compile: Any, x: Tensor, model: Any) -> Any:
        run, inputs = compile(model), {"first": torch.full((2,), 2.0), "other": torch.full((2,), 3.0)}
        return [run(x, **dict(given)) for given in (inputs.items(), reversed(inputs.items()), inputs.items())]

    check(step, leaf(2), Model)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.order = OrderedDict(first=True, second=True)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.order:
            x = getattr(self, name)(x).tanh()
        return x


def test_a_model_whose_layers_change_places() -> None:
    def step(compile: Any, x: Tensor, model: Any) -> Any:
        run, seen = compile(model), []
        for _ in range(4):
            seen.append(run(x))
            model.order.move_to_end("first", last=next(iter(model.order)) == "first")
        return seen

    check(step, leaf(2, 3), Stack)


def test_an_order_that_stays_is_compiled_once() -> None:
    run = gradc.compile(over_items)
    for value in (2.0, 2.0, 2.0):
        table = OrderedDict(other=0.5, first=value)
        table.move_to_end("other")
        run(table, leaf(3)())
    assert gradc.counters["stats"]["unique_graphs"] == 1
