"""Many steps of a compiled network: nothing is compiled again, and nothing of an earlier step is kept."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import gradc
from benchmarks.endurance import Held
from benchmarks.many_steps import Run


def test_three_thousand_steps() -> None:
    """In a process of its own: what other tests left in this one comes and goes."""
    command = [sys.executable, "-m", "benchmarks.many_steps", "--steps", "3000"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "flat" in done.stdout, done.stdout + done.stderr


def test_each_problem_is_seen() -> None:
    gradc.reset()
    run = Run()
    run.step()
    seen = run.look()
    held = Held(seen.held.resident_mib + 3, seen.held.num_objects + 1000)
    worse = dataclasses.replace(seen, graphs=2, fallbacks=1, backwards=seen.backwards + 1, held=held)
    assert len(run.problems(seen, worse)) == 4
