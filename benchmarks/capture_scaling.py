"""Whether compiling takes time in proportion to the model: a chain of 100 layers, and one of 1,000.

    python -m benchmarks.capture_scaling [--layers 100 1000]      processor seconds of gradc's own, and their ratio

A layer is Linear(8, 8) and tanh. What is timed is gradc's work on the graph that Dynamo hands over, and the first backward, in
which the second half of the work is done; not Dynamo's tracing. Each figure is the best of a few rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch import nn

import gradc
from benchmarks.common import prepare
from gradc.frontend import dynamo
from gradc.text_table import table

ROUNDS = 3


class Timed:
    """What Dynamo calls for a graph, with a clock: ``seconds`` is what gradc took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._compile = dynamo.compile_region

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        try:
            return self._compile(*args, **kwargs)
        finally:
            self.seconds += time.process_time() - start


def seconds_of(num_layers: int) -> tuple[float, float]:
    """Processor seconds for the forward and for the first backward of a chain of so many layers."""
    torch._dynamo.reset()
    run, timed = gradc.compile(chain(num_layers)), Timed()
    with mock.patch.object(dynamo, "compile_region", timed):
        loss = run(torch.randn(4, 8)).sum()
    start = time.process_time()
    loss.backward()
    return timed.seconds, time.process_time() - start


def chain(num_layers: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(num_layers) for layer in (nn.Linear(8, 8), nn.Tanh())))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture_scaling", description=__doc__)
    parser.add_argument("--layers", type=int, nargs=2, default=(100, 1000), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    options = parser.parse_args(arguments)
    prepare()
    torch._dynamo.config.recompile_limit = 1000
    seconds_of(2)  # what is imported when first needed
    rounds = [[seconds_of(num_layers) for num_layers in options.layers] for _ in range(options.rounds)]
    if gradc.counters["fallbacks"]:
        raise RuntimeError(f"parts ran eagerly: {dict(gradc.counters['fallbacks'])}")
    small, large = ([min(phase) for phase in zip(*own, strict=True)] for own in zip(*rounds, strict=True))
    rows = [
        [name, f"{one:.2f}", f"{other:.2f}", f"{other / one:.1f}"]
        for name, one, other in zip(("forward", "backward", "both"), (*small, sum(small)), (*large, sum(large)), strict=True)
    ]
    print(table(["processor s", *(f"{number} layers" for number in options.layers), "ratio"], rows))


if __name__ == "__main__":
    main()
