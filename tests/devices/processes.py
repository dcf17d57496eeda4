"""Run jobs on a simulated device, in a process of their own, which may die of one.

    run:       (jobs, device) -> {job: Outcome}
    in_python: a program's text -> what such a process makes of it
    python -m tests.devices.processes DEVICE JOB ...          is that process: it prints one line of JSON for each job

A device is registered for good, and changes what torch does in the whole process: that is why another one is started. Where it
dies, by a signal or an abort, the job that it was at has that as its outcome, and a new process goes on with the next one.

Before each job the devices' threads go far ahead in counting nodes (tests.devices.threads): then nodes are in the order in
which they were made, as on the CPU.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Sequence

import torch

from gradc import native
from tests.devices import simulated
from tests.devices.outcomes import Outcome, on
from tests.devices.threads import put_ahead

ROOT = pathlib.Path(__file__).parents[2]
BUILD = ROOT / "build" / "simulated_device"


def run(jobs: Sequence[str], device: str = simulated.NAME, seconds: float = 540) -> dict[str, Outcome]:
    """What came of ``jobs``, in their order."""
    found: dict[str, Outcome] = {}
    while left := [job for job in jobs if job not in found]:
        done, ending = _in_a_process(left, device, seconds)
        found |= done
        if len(done) < len(left):
            found[left[len(done)]] = Outcome((ending,))
    return found


def _in_a_process(jobs: Sequence[str], device: str, seconds: float) -> tuple[dict[str, Outcome], str]:
    """What came of the jobs up to the one at which the process died, if it did, and how it ended."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.devices.processes", device, *jobs]
    process = subprocess.Popen(command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        printed, complaints = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, complaints = process.communicate()
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith('{"job"')]
    done = {line.pop("job"): Outcome(tuple(line.pop("differences")), **line) for line in lines}
    code = process.returncode
    return done, f"the process died: {signal.Signals(-code).name if code < 0 else code}\n{complaints[-4000:]}"


def in_python(text: str) -> subprocess.CompletedProcess[str]:
    """Run ``text`` in a process that has the simulated device."""
    begin = f"import pathlib; from tests.devices import simulated; simulated.register(pathlib.Path({str(BUILD)!r}))\n"
    command = [sys.executable, "-c", begin + text]
    return subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=300)


def _environment() -> dict[str, str]:
    """As tests/conftest.py has it. What compiles the device stands beside Python, whether that is activated or not."""
    settings = {"GRADC_COMPILE_SECONDS": "none", "GRADC_COMPARE_WITH_EAGER": "0", "GRADC_VERIFY": "1"}
    beside = str(pathlib.Path(sys.executable).parent)
    return {**os.environ, **settings, "PATH": os.pathsep.join((beside, os.environ["PATH"]))}


def main(name: str, jobs: Sequence[str]) -> None:
    if name == simulated.NAME:
        simulated.register(BUILD)
        if native.is_built():
            native.extension.set_runs_before_graphs(0)  # what runs once or twice is to be replayed, too
    torch.set_num_threads(1)
    device = torch.device(name) if name in ("cpu", "meta") else torch.device(name, 0)
    for job in jobs:
        if name == simulated.NAME:
            put_ahead(list(map(torch.device, simulated.DEVICES)))
        print(json.dumps({"job": job, **dataclasses.asdict(on(device, job))}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
