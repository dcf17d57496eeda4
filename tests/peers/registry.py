"""The behaviours: small programs that are run eagerly and under gradc three ways, and must do the same.

    @behaviour(leaf(3))
    def a_gradient_is_added_to_the_one_there(compile, w): ...

A behaviour is a step of tests.oracle, named after what is to be seen. Words of errors count.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from tests.compilers import Compiler, find
from tests.oracle import Maker, Report, Step, compare

# A compiled function; a captured backward; both.
WAYS = tuple(find(name) for name in ("gradc", "captured", "gradc_captured"))


@dataclasses.dataclass(frozen=True, eq=False)
class Behaviour:
    """One program: ``step`` of ``inputs``, ``about`` what PyTorch's tests check with such."""

    name: str
    about: str
    step: Step
    inputs: tuple[Maker, ...]

    def run(self, compiler: Compiler) -> Report:
        return compare(self.step, *self.inputs, compiler=compiler, compare_messages=True)


BEHAVIOURS: list[Behaviour] = []


def behaviour(*inputs: Maker) -> Callable[[Step], Step]:
    """Register a step."""

    def register(step: Step) -> Step:
        about = step.__module__.rsplit(".", 1)[-1]
        BEHAVIOURS.append(Behaviour(step.__name__, about, step, inputs))
        return step

    return register


def refusal(call: Callable[[], Any]) -> str:
    """The class and the words of the error that ``call`` raises; what it returns, if it raises none.

    Of what the words name nodes, compiled code has others: a segment stands for many.
    """
    try:
        return f"returned {call()!r}"
    except Exception as error:
        return re.sub(r"output \d+ of [\w:]+", "output of a node", f"{type(error).__name__}: {error}")
