"""The long runs of benchmarks/: nothing is captured or compiled again, and nothing of an earlier step is kept."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

import gradc
from benchmarks import hooks_every_step, many_steps, whole_steps
from benchmarks.endurance import Held
from benchmarks.models import SMALL
from tests import forked


@pytest.mark.parametrize("benchmark", [hooks_every_step, many_steps, whole_steps])
def test_three_thousand_steps(benchmark: Any) -> None:
    """In a process of its own: what other tests left in this one comes and goes."""
    command = [sys.executable, "-m", benchmark.__name__, "--steps", "3000"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "flat" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("benchmark", "changed", "num_problems"),
    [
        (hooks_every_step, {"captures": 2, "hits": 1, "ran": 0}, 5),
        (many_steps, {"graphs": 2, "fallbacks": 1, "backwards": 1000}, 4),
        (whole_steps, {"more_graphs": 1, "fallbacks": 1, "backwards": 1000, "native_steps": 0}, 6),
    ],
)
def test_each_problem_is_seen(benchmark: Any, changed: dict[str, int], num_problems: int) -> None:
    gradc.reset()
    run = benchmark.Run()
    run.step()
    seen = run.look()
    held = Held(seen.held.resident_mib + 3, seen.held.num_objects + 1000)
    assert len(run.problems(seen, dataclasses.replace(seen, held=held, **changed))) == num_problems


def test_whole_steps_of_every_benchmark_are_eagers() -> None:
    """A few here; 200 take minutes: make same-steps."""
    done = forked.python("-m", "benchmarks.same_steps", "--steps", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(SMALL) and all("eager's bits" in line and "6 native updates" in line for line in lines), (
        done.stdout
    )
