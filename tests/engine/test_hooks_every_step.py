"""New hooks at every step: nothing is captured again, and nothing of an earlier step is kept."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import gradc
from benchmarks.endurance import Held
from benchmarks.hooks_every_step import Run


def test_three_thousand_steps() -> None:
    """In a process of its own: what other tests left in this one comes and goes."""
    command = [sys.executable, "-m", "benchmarks.hooks_every_step", "--steps", "3000"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "flat" in done.stdout, done.stdout + done.stderr


def test_each_problem_is_seen() -> None:
    gradc.reset()
    run = Run()
    run.step()
    seen = run.look()
    held = Held(seen.held.resident_mib + 3, seen.held.num_objects + 1000)
    worse = dataclasses.replace(seen, captures=2, hits=1, ran=0, held=held)
    assert len(run.problems(seen, worse)) == 5
