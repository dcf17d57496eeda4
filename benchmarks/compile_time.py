"""Compile time of a 4-layer transformer (d = 128): the first forward and backward, everything cold, less a warm one.

Interleaved, with torch._dynamo.reset() before each; medians of seven.
"""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.common import CONTENDERS, Step, first_call, fresh, prepare, warm_up
from gradc.text_table import table

NAMES = ["torch.compile aot_eager", "gradc"]
ROUNDS = 7


def warm(step: Step) -> float:
    """Seconds of a step that compiles nothing more."""
    step()
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main() -> None:
    prepare()
    warm_up(NAMES)
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(ROUNDS):
        for name in NAMES:
            torch._dynamo.reset()
            step = fresh("models").gpt(CONTENDERS[name].compile)
            first = first_call(step, name)
            seconds[name].append(first - warm(step))
    medians = {name: statistics.median(own) for name, own in seconds.items()}
    rows = [[name, f"{median:.2f}", f"{median / medians[NAMES[0]]:.2f}"] for name, median in medians.items()]
    print(table(["4-layer transformer, d = 128", "compile s", "of aot_eager"], rows))


if __name__ == "__main__":
    main()
