"""Live beside eager: bits after each of some steps, then times of both, in turns.

python -m prototypes.live.compare [PROGRAM ...] [-v]          STEPS=20 REPEATS=60
"""

from __future__ import annotations

import os
import random
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy
import torch

import gradc
from prototypes.live.live import callbacks, ext, live
from prototypes.live.programs import PROGRAMS, Training


def look(training: Training, returned: Any) -> list[torch.Tensor]:
    """All that is compared, copied."""
    found: list[torch.Tensor] = []

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append(value.detach().clone())
        elif isinstance(value, dict):
            add([part for _, part in sorted(value.items(), key=lambda pair: str(pair[0]))])
        elif isinstance(value, (tuple, list)):
            for part in value:
                add(part)
        elif isinstance(value, (int, float)):
            found.append(torch.tensor(float(value), dtype=torch.float64))

    add(returned)
    for seen in training.seen:
        if isinstance(seen, torch.nn.Module):
            add([list(seen.parameters()), list(seen.buffers()), [p.grad for p in seen.parameters() if p.grad is not None]])
        else:
            add(seen.state_dict()["state"])
    return [*found, torch.get_rng_state()]


def make(name: str, is_live: bool) -> Training:
    seed(0)
    training = PROGRAMS[name]()
    if is_live:
        optimizers = [seen for seen in training.seen if isinstance(seen, torch.optim.Optimizer)]
        for optimizer in optimizers:
            gradc.compile(optimizer)
        training = training._replace(step=live(training.step, optimizers))
    return training


def seed(number: int) -> None:
    torch.manual_seed(number)
    numpy.random.seed(number)
    random.seed(number)


def are_equal(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    pairs = list(zip(ours, theirs))
    return len(ours) == len(theirs) and all(
        a.dtype == b.dtype and torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in pairs
    )


def timed(training: Training, number: int) -> float:
    seed(number % 3)
    start = time.thread_time()
    training.step()
    return (time.thread_time() - start) * 1e3


def compare(name: str, steps: int, repeats: int) -> None:
    eager, ours = make(name, False), make(name, True)
    bad = []
    for number in range(steps):
        seed(number)
        theirs = look(eager, eager.step())
        seed(number)
        if not are_equal(look(ours, ours.step()), theirs):
            bad.append(number)
    before = dict(ext.counts())
    times = [(timed(eager, number), timed(ours, number)) for number in range(repeats)]
    (a, least_a), (b, least_b) = ((sorted(column)[repeats // 2], min(column)) for column in zip(*times))
    bits = f"DIFFER at {bad}" if bad else "equal"
    print(f"{name:13s} bits {bits}  eager {least_a:.2f}/{a:.2f}  live {least_b:.2f}/{b:.2f}", end="  ")
    print(f"ratio {least_a / least_b:.2f}/{a / b:.2f}", flush=True)
    if "-v" in sys.argv:
        print({key: round((value - before.get(key, 0)) / repeats, 2) for key, value in ext.counts().items()}, callbacks.why)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in [word for word in sys.argv[1:] if not word.startswith("-")] or list(PROGRAMS):
        compare(name, int(os.environ.get("STEPS", "20")), int(os.environ.get("REPEATS", "60")))
