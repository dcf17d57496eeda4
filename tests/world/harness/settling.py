"""When a compiled training is settled: nothing new is compiled, and gradc has decided what runs compiled and what eagerly.

    settle: (step, steps made so far) -> Settled

What compiles at each step for ever, or has not come to a decision after ``SECONDS``, is timed as it is, and shown as such.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch

from gradc.journal import num_compiled
from gradc.policy.profitability import is_undecided

QUIET_STEPS = 5
SECONDS = 60.0
CLOCK = time.process_time


@dataclasses.dataclass(frozen=True)
class Settled:
    """``is_settled`` after ``num_steps``; or not even then."""

    num_steps: int
    is_settled: bool


def settle(step: Callable[[], object], num_steps: int = 0) -> Settled:
    """Make steps until they are settled; see the module's docstring."""
    num_quiet, known, end = 0, _num_compiled(), CLOCK() + SECONDS
    while num_quiet < QUIET_STEPS or is_undecided():
        if CLOCK() > end:
            return Settled(num_steps, False)
        step()
        num_steps, before, known = num_steps + 1, known, _num_compiled()
        num_quiet = num_quiet + 1 if known == before else 0
    return Settled(num_steps, True)


def _num_compiled() -> int:
    """By gradc, or by Dynamo for another."""
    return num_compiled() + sum(torch._dynamo.utils.counters["frames"].values())
