"""Python raises by itself: what a handler reads of the error is what Python says, and what nobody uses raises all the same."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradc
from tests.oracle import check, leaf

DEFAULTS: Any = collections.defaultdict(list)
ITEMS: list[Any] = [1, 2]
DEQUE = collections.deque([1])


def unpacked(value: Any) -> Any:
    first, second = value
    return first, second


RAISE: dict[str, Callable[[], Any]] = {
    "attribute of a number": lambda: (5).shape,  # type: ignore[attr-defined]
    "attribute of a string": lambda: "abc".shape,  # type: ignore[attr-defined]
    "attribute of None": lambda: None.shape,  # type: ignore[attr-defined]
    "attribute of a function": lambda: unpacked.nothing,  # type: ignore[attr-defined]
    "attribute of a list": lambda: [].shape,  # type: ignore[attr-defined]
    "attribute of a list from outside": lambda: ITEMS.shape,  # type: ignore[attr-defined]
    "attribute of a tuple": lambda: (1,).shape,  # type: ignore[attr-defined]
    "attribute of a dictionary": lambda: {}.shape,  # type: ignore[attr-defined]
    "attribute of a set": lambda: {1}.shape,  # type: ignore[attr-defined]
    "attribute of a range": lambda: range(3).shape,  # type: ignore[attr-defined]
    "attribute of an object": lambda: object().shape,  # type: ignore[attr-defined]
    "attribute of a class": lambda: bool.shape,  # type: ignore[attr-defined]
    "key of a dictionary": lambda: {"a": 1}["b"],
    "key that is popped": lambda: {}.pop("q"),
    "key that a defaultdict pops": lambda: DEFAULTS.pop("q"),
    "item of a tuple": lambda: (1, 2)[5],  # type: ignore[misc]
    "item that is not in a list": lambda: [1].index(2),
    "item that is removed": lambda: [1].remove(3),
    "item of a deque": lambda: DEQUE.index(5),
    "part of a string": lambda: "abc".index("z"),
    "list and tuple": lambda: [1] + (1,),  # type: ignore[operator]
    "length of a number": lambda: len(5),  # type: ignore[arg-type]
    "dictionary of numbers": lambda: dict([1]),  # type: ignore[list-item]
    "unpacked number": lambda: unpacked(5),
    "arguments of append": lambda: [].append(),  # type: ignore[call-arg]
    "arguments of split": lambda: "a".split(5),  # type: ignore[arg-type]
    "dictionary without items": lambda: collections.OrderedDict().popitem(),
    "codec": lambda: "a".encode("zz"),
    "reversed number": lambda: reversed(5),  # type: ignore[call-overload]
    "step of a range": lambda: range(1, 2, 0),
    "format of a number": lambda: format(1, "zz"),
}


def words(error: Exception | None) -> tuple[str, str, tuple[str, ...]]:
    return type(error).__name__, str(error), tuple(map(str, getattr(error, "args", ())))


@pytest.mark.parametrize("act", RAISE.values(), ids=RAISE)
def test_a_handler_reads_what_python_says(act: Callable[[], Any]) -> None:
    def step(x: torch.Tensor) -> Any:
        told = None
        try:
            act()
        except Exception as error:
            told = error
            x = x * 3
        return x + 1, told

    (eager, told), (got, error) = step(torch.ones(2)), gradc.compile(step)(torch.ones(2))
    assert words(error) == words(told)
    assert got.tolist() == eager.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("act", RAISE.values(), ids=RAISE)
def test_what_nobody_uses_raises(act: Callable[[], Any]) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        act()
        return x + 1

    with pytest.raises(Exception) as eager:
        step(torch.ones(2))
    with pytest.raises(type(eager.value)) as got:
        gradc.compile(step)(torch.ones(2))
    assert words(got.value) == words(eager.value)


@dataclasses.dataclass
class Pair:
    first: Any


def test_asking_forgiveness_is_one_graph() -> None:
    """``try: value.shape``: the handler reads nothing of the error."""

    def step(x: torch.Tensor, pair: Pair) -> torch.Tensor:
        try:
            pair.first.shape  # noqa: B018
        except AttributeError:
            return x * len(pair.first)
        return x * pair.first

    for first in ([1, 2, 3], torch.ones(2), (1, 2)):
        check(step, leaf(2), functools.partial(Pair, first))
    gradc.compile(step, fullgraph=True)(torch.ones(2), Pair([1, 2]))


def test_the_programs_own_errors_are_one_graph() -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        try:
            raise ValueError("told", 5)
        except ValueError as error:
            return x + error.args[1], error.args[0]

    def ended(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        iterator = iter([1])
        next(iterator)
        try:
            next(iterator)
        except StopIteration as error:
            return x + 1, len(error.args)
        return x, 0

    for function in (step, ended):
        assert str(gradc.compile(function, fullgraph=True)(torch.ones(2))) == str(function(torch.ones(2)))


def test_an_error_that_is_raised_again_has_pythons_words() -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        try:
            try:
                (5).shape  # type: ignore[attr-defined] # noqa: B018
            except AttributeError:
                raise
        except AttributeError as error:
            return x + 1, str(error)
        return x, ""

    check(step, leaf(2))
    assert gradc.compile(step)(torch.ones(2))[1] == "'int' object has no attribute 'shape'"
