"""The text of an object, in compiled code: it has the address of that object, and says what the object is at that moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradc
from gradc.bits import same_bits


class Plain:
    def __init__(self) -> None:
        self.n = 1


class Shown(Plain):
    def __repr__(self) -> str:
        return f"{id(self)}: {self.n}"


WAYS: dict[str, Callable[[Any], str]] = {
    "str": str,
    "repr": repr,
    "formatted": lambda it: f"{it}",
    "formatted by repr": lambda it: f"{it!r:>40}",
    "format": lambda it: "{} {}".format(it, 1),  # noqa: UP032
    "percent": lambda it: "%s" % it,  # noqa: UP031
    "in a list": lambda it: f"{[it]}",
}


@pytest.mark.parametrize("kind", [Plain, Shown])
@pytest.mark.parametrize("way", WAYS)
def test_the_text_of_another_object(way: str, kind: type[Plain]) -> None:
    def told(x: torch.Tensor, it: Plain) -> tuple[torch.Tensor, str]:
        it.n += 1
        text = WAYS[way](it)
        it.n += 1
        return x.sin(), text

    torch._dynamo.reset()
    run, x = gradc.compile(told), torch.ones(3)
    for it in (kind(), kind(), kind()):
        result, text = run(x, it)
        it.n -= 1
        assert text == WAYS[way](it) and same_bits(result, x.sin())


def test_the_text_of_an_object_that_is_made() -> None:
    def told(x: torch.Tensor) -> tuple[torch.Tensor, str, Plain]:
        it = Plain()
        return x.sin(), str(it), it

    run = gradc.compile(told)
    for _ in range(2):
        _, text, it = run(torch.ones(3))
        assert text == str(it)
