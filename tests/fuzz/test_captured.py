"""Random programs with their backward passes captured, then replayed: over eager forwards, and over compiled ones."""

from __future__ import annotations

import dataclasses

import pytest

from tests.compilers import find
from tests.fuzz.generate import generate
from tests.fuzz.judge import BAD, judge
from tests.fuzz.program import VARIED
from tests.fuzz.test_fuzz import ENDS_THE_PROCESS_IN_EAGER

NUM_PROGRAMS = {"captured": 400, "gradc_captured": 30}


@pytest.mark.parametrize("name", NUM_PROGRAMS)
def test_programs_as_eager(name: str) -> None:
    for number in range(NUM_PROGRAMS[name]):
        if number in ENDS_THE_PROCESS_IN_EAGER:
            continue
        program = generate(0, number)
        verdict = judge(program, find(name))
        again = f"python -m tests.fuzz --show {number} --seed 0 --compiler {name}"
        assert verdict.status not in BAD, f"{again}: {verdict.detail}\n{program.source()}"


def test_programs_at_several_sizes() -> None:
    """Number 271: at second order two nodes hold the number that a size is."""
    for number in range(200, 300):
        program = dataclasses.replace(generate(2, number), changes=VARIED)
        verdict = judge(program, find("captured"))
        again = f"python -m tests.fuzz --show {number} --seed 2 --vary --compiler captured"
        assert verdict.status not in BAD, f"{again}: {verdict.detail}\n{program.source()}"
