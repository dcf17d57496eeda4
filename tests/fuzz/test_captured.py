"""Random programs with their backward passes captured, then replayed: over eager forwards, and over compiled ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.compilers import find
from tests.fuzz.generate import generate
from tests.fuzz.judge import BAD, judge
from tests.fuzz.program import VARIED
from tests.fuzz.test_fuzz import ENDS_THE_PROCESS_IN_EAGER

NUM_PROGRAMS = {"captured": 400, "gradc_captured": 30}
ONE_IN = {"captured": 8, "gradc_captured": 5}  # comes on a day


@pytest.mark.parametrize("name", NUM_PROGRAMS)
def test_programs_as_eager(name: str, of_the_day: Any) -> None:
    for number in of_the_day(range(NUM_PROGRAMS[name]), ONE_IN[name]):
        if number in ENDS_THE_PROCESS_IN_EAGER:
            continue
        program = generate(0, number)
        verdict = judge(program, find(name))
        again = f"python -m tests.fuzz --show {number} --seed 0 --compiler {name}"
        assert verdict.status not in BAD, f"{again}: {verdict.detail}\n{program.source()}"


def test_programs_at_several_sizes(of_the_day: Any) -> None:
    """Number 271: at second order two nodes hold the number that a size is."""
    for number in {271, *of_the_day(range(200, 300), 5)}:
        program = dataclasses.replace(generate(2, number), changes=VARIED)
        verdict = judge(program, find("captured"))
        again = f"python -m tests.fuzz --show {number} --seed 2 --vary --compiler captured"
        assert verdict.status not in BAD, f"{again}: {verdict.detail}\n{program.source()}"
