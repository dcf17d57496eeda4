"""Objects that are dictionaries, too, and have attributes: those are guarded, be the dictionary empty or not."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from tests.oracle import check, leaf


class Table(dict[str, int]):
    rate: int


class Default(collections.defaultdict[str, int]):
    rate: int


class Counter(collections.Counter[str]):
    rate: int


class Ordered(collections.OrderedDict[str, int]):
    rate: int


KINDS = [Table, Default, Counter, Ordered, collections.OrderedDict]


def grows(table: Any) -> None:
    table["a"] = 2


def shrinks(table: Any) -> None:
    table.clear()


def has_another_rate(table: Any) -> None:
    table.rate = 5


def has_no_rate(table: Any) -> None:
    del table.rate


def has_more(table: Any) -> None:
    table.other = 1


@pytest.mark.parametrize("change", [grows, shrinks, has_another_rate, has_no_rate, has_more])
@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_changes_between_calls(kind: Any, is_empty: bool, change: Any) -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        table = kind()
        table.rate = 3
        if not is_empty:
            table["b"] = 7

        @compile
        def run(x: torch.Tensor) -> Any:
            found = getattr(table, "rate", 11) * (2 if hasattr(table, "other") else 1)
            return x * found * (len(table) + 1) * sum(table.values(), 1), list(table)

        seen = [run(x), run(x)]
        change(table)
        return [*seen, run(x), run(x)]

    check(step, leaf(3), allow_fallback=kind is collections.OrderedDict)  # since torch 2.14, which has no variable for those


def test_attributes_of_an_ordered_dict() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        table: Any = collections.OrderedDict(a=2)
        table.rate = 3

        @compile
        def run(x: torch.Tensor) -> Any:
            x = x * table.rate * vars(table)["rate"] * table["a"]
            made: Any = collections.OrderedDict(table)
            made.rate = table.rate + 1
            has = [hasattr(table, "rate"), hasattr(table, "other"), hasattr(made, "rate"), getattr(table, "other", 7)]
            return x, made.rate, has

        return run(x), run(x)

    check(step, leaf(3), allow_fallback=True)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_one_that_compiled_code_fills(kind: Any) -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        table, seen = kind(), []
        table.rate = 3

        @compile
        def run(x: torch.Tensor) -> torch.Tensor:
            table["a"] = len(table)
            table.rate += 1
            return x * table.rate * table["a"]

        for _ in range(3):
            seen += [run(x), dict(table), table.rate]
        return seen

    check(step, leaf(3), allow_fallback=True)
