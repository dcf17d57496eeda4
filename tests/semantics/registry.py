"""The behaviours that are compared with eager: each is a pytest test, and a row of docs/semantics.md.

    @case("Autocast at backward time", leaf(4, 4), leaf(4, 4))
    def test_backward_outside_autocast(compile, x, w): ...

A case is a step of tests.oracle; under pytest it is checked with the compiler under test, and ``tests.semantics.table``
runs it under every compiler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.compilers import Compiler
from tests.oracle import NOT_CAPTURED, Maker, Report, Step, compare


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One behaviour.

    Attributes:
        line: what it is about, the first column of docs/semantics.md.
        room: the name of the test module, without ``test_``.
        fallback: the reason for which gradc may run a part eagerly here; "" if it may not.
        compare_messages: an error must have eager's words.
        min_graphs: how many graphs a compiler must capture, or the case would show nothing.
    """

    line: str
    room: str
    name: str
    step: Step
    inputs: tuple[Maker, ...]
    fallback: str = ""
    compare_messages: bool = False
    min_graphs: int = 1

    def run(self, compiler: Compiler) -> Report:
        return compare(
            self.step,
            *self.inputs,
            compiler=compiler,
            compare_messages=self.compare_messages,
        )

    def check(self, compiler: Compiler) -> None:
        """AssertionError if the compiled run differs, ran eagerly for an unforeseen reason, or captured nothing."""
        report = self.run(compiler)
        assert not report.differences, str(report)
        foreseen = (*HOOKED, NOT_CAPTURED, *([self.fallback] if self.fallback else []))
        unforeseen = [reason for reason in report.fallbacks if not any(part in reason for part in foreseen)]
        assert not unforeseen, f"{self.name}: runs eagerly in part: {unforeseen}"
        min_graphs = 0 if compiler.name == "captured" else self.min_graphs
        assert report.num_graphs >= min_graphs, f"{self.name}: {report.num_graphs} graphs were captured"


# Hooks of the user's that look at more than the tensor they get see what Python does meanwhile: such a call runs eagerly.
HOOKED = ("saved-tensors hooks",)
CASES: list[Case] = []


def case(
    line: str, *inputs: Maker, fallback: str = "", compare_messages: bool = False, min_graphs: int = 1
) -> Callable[[Step], Callable[[Compiler], None]]:
    """Register a step as a case; gives back the pytest test."""

    def register(step: Step) -> Callable[[Compiler], None]:
        name = step.__name__.removeprefix("test_")
        room = step.__module__.rsplit(".", 1)[-1].removeprefix("test_")
        registered = Case(line, room, name, step, inputs, fallback, compare_messages, min_graphs)
        CASES.append(registered)

        def test(compiler: Compiler) -> None:
            registered.check(compiler)

        test.__name__, test.__doc__, test.__module__ = step.__name__, step.__doc__, step.__module__
        return test

    return register
