"""New hooks at every step: nothing is captured again, and nothing of an earlier step is kept."""

from __future__ import annotations

import dataclasses

import gradc
from benchmarks.hooks_every_step import Run, problems


def test_two_thousand_steps() -> None:
    gradc.reset()
    run = Run()
    for _ in range(300):
        run.step()
    before = run.look()
    for _ in range(2000):
        run.step()
    assert problems(before, run.look()) == []


def test_each_problem_is_seen() -> None:
    gradc.reset()
    run = Run()
    run.step()
    seen = run.look()
    worse = dataclasses.replace(
        seen, captures=2, hits=1, ran=0, resident_mib=seen.resident_mib + 3, num_objects=seen.num_objects + 1000
    )
    assert len(problems(seen, worse)) == 5
