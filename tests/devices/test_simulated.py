"""What gradc does with tensors that live elsewhere: on a device whose memory the host cannot read (device.cpp)."""

from __future__ import annotations

import signal
from typing import Any

from tests.devices import registry
from tests.devices.outcomes import faults
from tests.devices.processes import in_python, run

PROGRAMS = registry.load()


def test_every_program_is_as_eager(of_the_day: Any) -> None:
    names = list(PROGRAMS)
    outcomes = run([f"gradc:{names[number]}" for number in of_the_day(range(len(names)), 3)])
    wrong = {job: found for job, outcome in outcomes.items() if (found := faults(PROGRAMS[job.split(":")[1]], outcome))}
    assert wrong == {}


def test_what_is_not_done_there_is_counted() -> None:
    reasons = {
        "captured": "compiled autograd: device other than the CPU",
        "gradc_captured": "compiled autograd: device other than the CPU",
        "gradc:inductor": "program that Inductor cannot compile",
    }
    outcomes = run([f"{compiler}:{name}" for compiler in reasons for name in ("mlp", "scalar_of_the_host")])
    for job, outcome in outcomes.items():
        assert outcome.differences == ()
        assert list(outcome.fallbacks) == [reasons[job.rsplit(":", 1)[0]]]


def test_the_host_cannot_read_its_memory() -> None:
    """Else the other tests would show nothing."""
    read = "import ctypes, torch; x = torch.ones(4, device='simulated'); print(x.cpu()); ctypes.string_at(x.data_ptr(), 16)"
    done = in_python(read)
    assert "tensor([1., 1., 1., 1.])" in done.stdout, done.stderr
    assert done.returncode == -signal.SIGSEGV
