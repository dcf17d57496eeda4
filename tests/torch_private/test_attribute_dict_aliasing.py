"""State that two names lead to, and that compiled code writes by one of them: dictionaries of attributes, views, proxies."""

from __future__ import annotations

import builtins
import functools
import os
import types
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from tests.oracle import check, leaf

builtins.RATE_OF_TESTS = 1  # type: ignore[attr-defined]


class Thing:
    def __init__(self) -> None:
        self.v = 1


def shift(x: Any) -> Any:
    return x + 1


THING, OTHER, LAYER, TWIN = Thing(), Thing(), nn.Linear(3, 3), nn.Linear(3, 3)
OTHER.__dict__, TWIN.__dict__ = THING.__dict__, LAYER.__dict__
shift.v = 1  # type: ignore[attr-defined]
OF_THING, OF_LAYER, OF_SHIFT = vars(THING), vars(LAYER), vars(shift)
PROXY = weakref.proxy(THING)
TABLE = {"v": 1}
VIEW, KEYS = types.MappingProxyType(TABLE), TABLE.keys()


def write_attribute(n: int) -> None:
    THING.v = n


def write_dictionary(n: int) -> None:
    OF_THING["v"] = n


def write_through_its_dictionary(n: int) -> None:
    THING.__dict__.update(v=n)


def write_through_the_other(n: int) -> None:
    OTHER.v = n


READS = {
    "attribute": lambda: THING.v,
    "getattr": lambda: getattr(THING, "v", 5),
    "dictionary": lambda: OF_THING["v"],
    "its dictionary": lambda: vars(THING)["v"],
    "the other": lambda: OTHER.v,
    "proxy": lambda: PROXY.v,
    "values": lambda: sum(OF_THING.values()),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("write", [write_attribute, write_dictionary, write_through_its_dictionary, write_through_the_other])
def test_attributes_by_two_names(write: Any, read: str) -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        before = READS[read]()
        write(n)
        y = x.sin() * READS[read]()
        write(n + 1)
        return y * READS[read](), before

    def step(compile: Any, x: torch.Tensor) -> Any:
        run, seen, THING.v = compile(calculate), [], 1
        for n in (2, 3, 3, 5):
            y, before = run(x, n)
            y.sum().backward()
            seen += [y, before, THING.v, OF_THING["v"]]
        return seen

    check(step, leaf(3))


def compare(calculate: Any, restore: Any = lambda: None) -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        restore()
        run = compile(calculate)
        return [run(x, n) for n in (2, 3, 3, 5)]

    check(step, leaf(3), allow_fallback=True)  # truths that are calculated of n are returned


def test_attributes_of_a_module_and_its_dictionary() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        was = OF_LAYER["training"]
        LAYER.train(n % 2 == 0)
        y = x * (2 if OF_LAYER["training"] else 3)
        OF_LAYER["training"] = n == 5
        return y * (5 if LAYER.training else 7), was

    compare(calculate)


def test_two_modules_with_one_dictionary() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        LAYER.train(n % 2 == 0)
        y = x * (2 if TWIN.training else 3)
        TWIN.eval()
        return y * (5 if LAYER.training else 7)

    compare(calculate)


def test_attributes_of_a_function_and_its_dictionary() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        OF_SHIFT["v"] = n
        return shift(x) * shift.v * getattr(shift, "v", 9)  # type: ignore[attr-defined]

    compare(calculate)


def test_a_dictionary_of_attributes_met_before_the_kept_one() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        attributes = shift.__dict__
        OF_SHIFT["v"] = n
        return x * attributes["v"]

    compare(calculate)


def scale(x: Any, *, other: int = 1) -> Any:
    return x * other


PARTIAL = functools.partial(scale, other=1)
OF_PARTIAL, OF_SCALE = PARTIAL.keywords, scale.__kwdefaults__


@pytest.mark.parametrize("write", [lambda kept, n: kept.update(other=n), lambda kept, n: kept.__setitem__("other", n)])
@pytest.mark.parametrize(("call", "kept"), [(PARTIAL, OF_PARTIAL), (scale, OF_SCALE)])
@pytest.mark.parametrize("is_met_first", [False, True])
def test_kept_keywords_of_a_partial_and_defaults_of_a_function(write: Any, call: Any, kept: Any, is_met_first: bool) -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        before = call(x) if is_met_first else None
        write(kept, n)
        return call(x), before

    compare(calculate, lambda: kept.update(other=1))


def test_keywords_of_a_partial_that_are_read() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        OF_PARTIAL["other"] = n
        return x * PARTIAL.keywords["other"]

    compare(calculate)


def test_a_builtin_that_is_written_as_an_attribute() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        builtins.RATE_OF_TESTS = n  # type: ignore[attr-defined]
        return x * RATE_OF_TESTS  # type: ignore[name-defined] # noqa: F821

    compare(calculate)


def restore_table() -> None:
    TABLE.clear()
    TABLE["v"] = 1


@pytest.mark.parametrize("is_met_first", [False, True])
@pytest.mark.parametrize(
    "look", [lambda: len(VIEW), lambda: "w" in VIEW, lambda: list(VIEW), lambda: len(KEYS), lambda: "w" in KEYS]
)
def test_views_of_a_dictionary_that_grows(look: Any, is_met_first: bool) -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        before = look() if is_met_first else None
        TABLE["w"] = n
        return x * TABLE["w"], before, look()

    compare(calculate, restore_table)


def test_keywords_of_a_partial_that_is_made_within() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        made = functools.partial(scale, other=n)
        keywords, before = made.keywords, made(x)
        keywords["other"] = 7
        return made(x), before, made.keywords["other"], {**keywords}

    compare(calculate)


def test_keywords_of_a_partial_that_is_made_within_and_read() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        made = functools.partial(scale, other=n)
        return made(x) * made.keywords["other"] * len({**made.keywords})

    gradc.counters.clear()
    compare(calculate)
    assert not gradc.counters["uncompiled"]


def test_a_dictionary_of_attributes_that_is_replaced() -> None:
    other = {"v": 8}

    def calculate(x: torch.Tensor, n: int) -> Any:
        THING.__dict__ = other
        THING.v = n
        return x * THING.v, other["v"], OTHER.v

    def restore() -> None:
        THING.__dict__ = OF_THING
        other["v"] = 8

    compare(calculate, restore)
    restore()


def test_attributes_that_are_written_in_place() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        before = OF_THING["v"]
        THING.__dict__ |= {"v": n}
        return x * OF_THING["v"], before

    compare(calculate, lambda: OF_THING.update(v=1))


def test_which_dictionary_it_is() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        return x * n, THING.__dict__ is OF_THING, OF_SHIFT is vars(shift), vars(LAYER) is OF_LAYER, vars(THING) is vars(THING)

    compare(calculate)


class Attributes(dict[str, Any]):
    """A dictionary whose attributes are its items."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


def test_a_dictionary_that_is_its_own() -> None:
    table = Attributes()

    def restore() -> None:
        table.clear()
        table.v = 1

    def calculate(x: torch.Tensor, n: int) -> Any:
        before = table.v
        table["v"] = n
        y = x * table.v
        table.v = n + 1
        table["w"] = n
        return y, before, table["v"], table.w, hasattr(table, "w"), getattr(table, "u", 9), list(table.items())

    compare(calculate, restore)


def test_a_dictionary_that_is_its_own_costs_no_graph_where_it_is_read() -> None:
    table = Attributes(v=2, w=3)

    def calculate(x: torch.Tensor, n: int) -> Any:
        return x * table.v * table["w"] * len(table) * getattr(table, "u", n)

    gradc.counters.clear()
    compare(calculate)
    assert not gradc.counters["uncompiled"]


@pytest.mark.parametrize("owner", [Thing(), nn.Linear(3, 3), Attributes()])
def test_the_order_of_attributes_that_are_new(owner: Any) -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        owner.v = n
        owner.w = n
        return x * owner.w, [*vars(owner)], [*owner.__dict__.values()][-2:], len(vars(owner))

    compare(calculate, lambda: vars(owner).pop("w", None))


def delete_attribute(thing: Any) -> None:
    del thing.v
    thing.v = 5


def pop_item(thing: Any) -> None:
    attributes = vars(thing)
    attributes["v"] = attributes.pop("v") + 1


def clear_all(thing: Any) -> None:
    vars(thing).clear()
    thing.w = 1
    thing.v = 2


@pytest.mark.parametrize("write", [delete_attribute, pop_item, clear_all])
@pytest.mark.parametrize("owner", [Thing(), nn.Linear(3, 3)])
def test_the_order_of_attributes_that_are_set_again(owner: Any, write: Any) -> None:
    if write is clear_all and isinstance(owner, nn.Module):
        return  # it would be none

    def calculate(x: torch.Tensor, n: int) -> Any:
        write(owner)
        return x * owner.v, [*vars(owner)]

    def restore() -> None:
        for name in ("v", "w"):
            vars(owner).pop(name, None)
            setattr(owner, name, 1)

    compare(calculate, restore)


def test_a_deleted_attribute_of_a_module() -> None:
    module = nn.Linear(3, 3)

    def calculate(x: torch.Tensor, n: int) -> Any:
        del module.rate
        return x * n, "rate" in module.__dict__, vars(module).get("rate"), hasattr(module, "rate")

    def step(compile: Any, x: torch.Tensor) -> Any:
        run, seen = compile(calculate), []
        for n in (2, 3):
            module.rate = n
            seen.append(run(x, n))
        return seen

    check(step, leaf(3), allow_fallback=True)


def test_attributes_of_a_partial() -> None:
    """As ``functools.update_wrapper`` gives it: Dynamo answered for a new partial, without them."""
    wrapped = functools.update_wrapper(functools.partial(torch.mul, other=2.0), shift)

    def calculate(x: torch.Tensor, n: int) -> Any:
        return wrapped(x), getattr(wrapped, "__name__", "none"), hasattr(wrapped, "__wrapped__"), wrapped.keywords["other"]

    compare(calculate)


def test_the_dictionary_of_a_partial() -> None:
    wrapped = functools.update_wrapper(functools.partial(torch.mul, other=2.0), shift)
    kept = vars(wrapped)

    def calculate(x: torch.Tensor, n: int) -> Any:
        vars(wrapped)["v"] = n
        return wrapped(x), kept["v"], wrapped.__dict__["__name__"], [*vars(wrapped)]

    compare(calculate)


def test_getenv_is_asked_again() -> None:
    def calculate(x: torch.Tensor) -> Any:
        return x * int(os.getenv("RATE_OF_TESTS", "7"))

    def step(compile: Any, x: torch.Tensor) -> Any:
        run, seen = compile(calculate), []
        for rate in ("2", "3", "3"):
            os.environ["RATE_OF_TESTS"] = rate
            seen.append(run(x))
        del os.environ["RATE_OF_TESTS"]
        return [*seen, run(x)]

    check(step, leaf(3))


def test_it_is_counted() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        OF_THING["v"] = n
        return x * THING.v

    gradc.counters.clear()
    gradc.compile(calculate)(torch.ones(3), 2)
    (reason,) = gradc.counters["uncompiled"]
    assert reason == "gradc: dictionary of attributes"


def test_it_costs_no_graph_where_one_name_is_used() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        x = PARTIAL(scale(x)) * OF_PARTIAL["other"] * OF_SCALE["other"] * OF_SHIFT["v"] * shift.v  # type: ignore[attr-defined]
        THING.v = n
        vars(THING)["v"] += 1
        TABLE["v"] = THING.v
        return x * THING.v * TABLE["v"]

    gradc.counters.clear()
    gradc.compile(calculate, fullgraph=True)(torch.ones(3), 2)
    assert not gradc.counters["uncompiled"]


@pytest.mark.parametrize("is_met_first", [False, True])
def test_a_kept_dictionary_that_is_merged_in_place(is_met_first: bool) -> None:
    """Dynamo asked Python, and a copy of it, where the graph ends within the operator."""

    def calculate(x: torch.Tensor, n: int) -> Any:
        attributes, before = OF_SHIFT, hasattr(shift, "v") if is_met_first else None
        attributes |= {"v": n}
        return x * shift.v, before, attributes is OF_SHIFT  # type: ignore[attr-defined]

    compare(calculate)
