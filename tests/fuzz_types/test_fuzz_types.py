"""The fuzzer of Python's own types: its programs are reproducible and vary; gradc runs some of them as eager does."""

from __future__ import annotations

from typing import Any

from tests.compilers import Compiler
from tests.fuzz_types.generate import Program, generate
from tests.fuzz_types.judge import judge

NUM_PROGRAMS = 60


def test_same_seed_same_program() -> None:
    assert generate(0, 7) == generate(0, 7) != generate(1, 7)


def test_they_vary() -> None:
    programs = [generate(0, number) for number in range(300)]
    assert len({program.act for program in programs}) > 200
    assert {program.place for program in programs} == {"made", "given", "global"}


def test_as_in_eager() -> None:
    verdicts = [judge(generate(0, number)) for number in range(NUM_PROGRAMS)]
    assert [verdict for verdict in verdicts if verdict.status == "wrong"] == []
    assert sum(verdict.status == "ok" for verdict in verdicts) > NUM_PROGRAMS // 2


def test_what_is_wrong_is_found() -> None:
    def without_the_last(function: Any, **_: Any) -> Any:
        def changed(x: Any, given: Any) -> Any:
            x, r, v = function(x, given)
            return x, r[:-1], v

        return changed

    program = Program("[3, 1, 2]", "r = v * 2", "given", is_caught=False)
    assert judge(program).status == "ok"
    assert judge(program, Compiler("wrong", without_the_last)).status == "wrong"
