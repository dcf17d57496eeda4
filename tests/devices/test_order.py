"""Gradients of gradients are eager's whatever the threads of devices have counted: see tests.devices.order."""

from __future__ import annotations

import sys
from typing import Any

from tests.devices.outcomes import faults
from tests.devices.processes import in_python, run
from tests.devices.registry import load

PROGRAMS = load()
NAMES = [name for name, program in PROGRAMS.items() if program.step.__module__ == "tests.devices.order"]
AHEAD = (-100_000, -40, -20, -10, -5, 0, 5, 10, 20, 40)  # far ahead is what test_simulated has


def test_every_program_at_any_count(of_the_day: Any) -> None:
    jobs = [f"gradc:{name}@{ahead}" for name in NAMES for ahead in AHEAD]
    outcomes = run([jobs[number] for number in of_the_day(range(len(jobs)), 5)])
    wrong = {
        job: found for job, outcome in outcomes.items() if (found := faults(PROGRAMS[job.split(":")[1].split("@")[0]], outcome))
    }
    assert wrong == {}


def test_whole_steps_are_compiled_where_the_device_has_counted_further() -> None:
    outcomes = run([f"gradc:{name}@1000" for name in NAMES if name.startswith("whole_steps")])
    assert len(outcomes) == 2
    for outcome in outcomes.values():
        assert outcome.differences == () and outcome.fallbacks.keys() <= {"optimizer"}, outcome


def test_eager_is_not_the_same_at_any_count() -> None:
    """Else the other test would show nothing."""
    text = """
        import torch
        from gradc.bits import same_bits
        from tests.compilers import EAGER
        from tests.devices import registry, threads
        devices = [torch.device("simulated", 0)]
        for name in NAMES:
            found = []
            for ahead in (threads.FAR_AHEAD, -threads.FAR_AHEAD):
                torch.manual_seed(0)
                threads.put_ahead(devices, ahead)
                found.append([x.grad.cpu() for x in registry.load()[name].step(EAGER, devices[0])[-2:]])
            print(name, all(map(same_bits, *found)))
    """
    done = in_python(f"NAMES = {NAMES}\n" + "\n".join(line[8:] for line in text.splitlines()))
    assert done.stdout.count("False") >= 4, (done.stdout, done.stderr, sys.version)
