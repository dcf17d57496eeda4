"""The first step of a process, from `import` to compiled; and that of a second one, which finds what the first one kept.

    python -m benchmarks.cold [--rounds 3] [--out docs/benchmarks/first-call.md]      prints the table, and writes it

Each figure is the median over rounds; each first step has a process of its own, and the contenders take turns. What compilers
keep on disk goes into a folder that is empty for the first process, and that only the second finds. Torch and gradc are
imported and the model is built before the clock starts; what a compiler imports when first asked to compile counts. The
gradients of a contender's two processes must have the same bits.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

import gradc
import gradc.frontend.api  # before the clock starts, as torch: the first use of gradc would import it
from benchmarks.common import CONTENDERS, Contender, first_call, prepare
from benchmarks.models import MODELS
from gradc.text_table import table

TIMED = {
    **{name: CONTENDERS[name] for name in ("eager", "torch.compile", "gradc", "gradc, compiled autograd")},
    "gradc, inductor": Contender(lambda target: gradc.compile(target, backend="inductor")),
}
CHOSEN = ["64-layer MLP", "LSTMCell x 32", "GPT float32"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--out", default="first-call.md", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "CONTENDER"), help="time this one here, and print seconds and bits")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(seconds_and_bits_here(*options.one)))
        return
    rows = [row for model in CHOSEN for row in rows_of(model, options.rounds)]
    headers = ["model", "contender", "first step s", "shorter than torch.compile's", "in a second process s", "of the first"]
    print(table(headers, rows))
    made = f"Made by `python -m benchmarks.cold --rounds {options.rounds}`: one thread, a process for each figure."
    kept = (
        "A second process finds what the first one's compiler kept on disk: that is Inductor's code, and nothing of `replay`"
        " ([why](../notes/saved-programs.md)). Gradients have the first process's bits in each row."
    )
    Path(options.out).write_text(f"# The first step of a process\n\n{made} {kept}\n\n{table(headers, rows, markdown=True)}\n")


def rows_of(model: str, rounds: int) -> list[list[str]]:
    firsts: dict[str, list[float]] = {name: [] for name in TIMED}
    seconds: dict[str, list[float]] = {name: [] for name in TIMED}
    for _ in range(rounds):
        for name in TIMED:
            first, second = seconds_of_two_processes(model, name)
            firsts[name].append(first)
            seconds[name].append(second)
    medians = {name: statistics.median(own) for name, own in firsts.items()}
    return [
        [
            model,
            name,
            f"{medians[name]:.2f}",
            f"{medians['torch.compile'] / medians[name]:.1f} times" if "gradc" in name else "",
            f"{(second := statistics.median(seconds[name])):.2f}",
            f"{second / medians[name]:.2f}" if name != "eager" else "",
        ]
        for name in TIMED
    ]


def seconds_of_two_processes(model: str, contender: str) -> tuple[float, float]:
    """The first steps of two processes, the second with what the first has left on disk.

    Raises:
        RuntimeError: if they came to other bits.
    """
    command = [sys.executable, "-m", "benchmarks.cold", "--one", model, contender]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        printed = [
            subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout for _ in range(2)
        ]
    (first, bits), (second, other_bits) = (json.loads(text.splitlines()[-1]) for text in printed)
    if bits != other_bits:
        raise RuntimeError(f"{model}, {contender}: two processes came to different bits")
    return first, second


def seconds_and_bits_here(model: str, contender: str) -> tuple[float, str]:
    prepare()
    torch.manual_seed(0)
    torch.compiler.config.force_disable_caches = False
    with TIMED[contender].settings():
        step = MODELS[model](TIMED[contender].compile)
        seconds = first_call(step, contender)
    grads = [value.grad for value in gc.get_objects() if type(value) is torch.nn.Parameter and value.grad is not None]
    hashes = sorted(hashlib.sha256(grad.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest() for grad in grads)
    assert hashes, "no gradient to compare"
    return seconds, hashlib.sha256("".join(hashes).encode()).hexdigest()


if __name__ == "__main__":
    main()
