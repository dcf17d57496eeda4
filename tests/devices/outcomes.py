"""Run one job on a device, in this process, and say what came of it.

    on:     (device, job) -> Outcome               faults: (program, outcome) -> what is wrong with it, one sentence each

A job is COMPILER:PROGRAM (tests.compilers, tests.devices.registry), or COMPILER:semantics.ROOM.CASE for a case of
tests.semantics, with the device as torch's default device. PROGRAM@NUMBER says how far the devices' threads are ahead in
counting nodes as the program begins (tests.devices.threads), in eager and compiled.
"""

from __future__ import annotations

import dataclasses

import torch

from tests.compilers import find
from tests.devices.registry import Program, load
from tests.devices.simulated import DEVICES, NAME
from tests.devices.threads import FAR_AHEAD, put_ahead
from tests.oracle import Report, compare


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one job came to.

    Attributes:
        differences: what is not as in eager, one sentence each. What killed the process is one.
        fallbacks: what gradc ran eagerly: reason -> how often.
        num_graphs: how many graphs were captured.
        error: what eager raises; "" if nothing.
    """

    differences: tuple[str, ...]
    fallbacks: dict[str, int] = dataclasses.field(default_factory=dict)
    num_graphs: int = 0
    error: str = ""

    def __str__(self) -> str:
        if self.differences:
            return "DIFFERS: " + "; ".join(self.differences)
        how = "eagerly, counted: " + ", ".join(self.fallbacks) if self.fallbacks else "as eager"
        return how + (f"; eager raises {self.error}" if self.error else "")


def on(device: torch.device, job: str) -> Outcome:
    try:
        report = _report(device, job)
    except NotImplementedError as error:  # where the inputs are made: the device has no such op
        return Outcome((), error=str(error))
    except Exception as error:  # outside of the program: what it left behind cannot be looked at
        return Outcome((f"{type(error).__name__}: {error}",))
    error = report.eager.error
    return Outcome(report.differences, report.fallbacks, report.num_graphs, "" if error is None else str(error))


def _report(device: torch.device, job: str) -> Report:
    compiler, name = job.rsplit(":", 1)
    name, _, ahead = name.partition("@")
    if not name.startswith("semantics."):
        return compare(load()[name].step, lambda: _placed(device, int(ahead or FAR_AHEAD)), compiler=find(compiler))
    from tests.semantics.table import load as load_cases

    cases = {f"semantics.{case.room}.{case.name}": case for case in load_cases()}
    with device:
        return cases[name].run(find(compiler))


def _placed(device: torch.device, ahead: int) -> torch.device:
    if device.type not in ("cpu", "meta"):
        put_ahead([device] if device.type != NAME else list(map(torch.device, DEVICES)), ahead)
    return device


def faults(program: Program, outcome: Outcome) -> list[str]:
    unforeseen = [reason for reason in outcome.fallbacks if not any(reason.startswith(one) for one in program.fallbacks)]
    found = list(outcome.differences)
    found += [f"eager raises {outcome.error}"] if outcome.error else []
    found += [f"runs eagerly: {reason}" for reason in unforeseen]
    return found if found or outcome.fallbacks or outcome.num_graphs else ["nothing was captured, and nothing counted"]
