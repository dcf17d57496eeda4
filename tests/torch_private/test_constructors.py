"""How a class makes an object, in compiled code."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from tests.oracle import check, leaf


class Plain:
    pass


class HandsOnToInit:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class NamesInit:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        object.__init__(self, *args, **kwargs)


class HandsOnToNew:
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls, *args, **kwargs)


class NamesNew:
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls, *args, **kwargs)


class Takes:
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls)


@pytest.mark.parametrize("kind", [Plain, HandsOnToInit, NamesInit, HandsOnToNew, NamesNew, Takes])
def test_arguments_that_nobody_takes(kind: Any) -> None:
    """Dynamo made the object all the same: the user's handler did not run."""

    def step(compile: Any, x: Tensor) -> Any:
        told = []

        @compile()
        def f(x: Tensor) -> Tensor:
            for args, kwargs in (((), {}), ((x.abs(),), {}), ((), {"value": 1})):
                try:
                    kind(*args, **kwargs)
                except TypeError as error:
                    told.append(str(error))
            return x.sin()

        return f(x), told

    check(step, leaf(3))


class Tagging(type):
    def __call__(cls, value: Tensor) -> Any:
        made = super().__call__(value)
        made.tag = cls.__name__.lower()
        return made


class Tagged(metaclass=Tagging):
    tag: str

    def __init__(self, value: Tensor) -> None:
        self.value = value


def test_a_metaclass_makes_the_object() -> None:
    """Dynamo asked the class alone, and the object had no tag."""

    def step(compile: Any, x: Tensor) -> Any:
        @compile()
        def f(x: Tensor) -> Any:
            tagged = Tagged((x / 3).sin())
            return tagged.value * len(tagged.tag), tagged.tag

        return f(x)

    report = check(step, leaf(3), allow_fallback=True)
    assert report.num_graphs == 1  # what follows has the object alone
