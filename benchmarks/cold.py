"""The first step of a process: from `import` to compiled, nothing cached, nothing warm.

    python -m benchmarks.cold [--rounds 3]      prints the table, and writes it to docs/benchmarks/first-call.md

Each figure is the median over rounds; each first step has a process of its own, and the contenders take turns. Torch and gradc
are imported and the model is built before the clock starts; what a compiler imports when first asked to compile counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import CONTENDERS, first_call, prepare
from benchmarks.models import MODELS
from gradc.text_table import table

NAMES = ["eager", "torch.compile", "gradc", "gradc, compiled autograd"]
CHOSEN = ["64-layer MLP", "LSTMCell x 32", "GPT float32"]
REPORT = Path(__file__).parent.parent / "docs" / "benchmarks" / "first-call.md"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "CONTENDER"), help="time this one here, and print the seconds")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(seconds_here(*options.one)))
        return
    rows = [row for model in CHOSEN for row in rows_of(model, options.rounds)]
    headers = ["model", "contender", "first step s", "shorter than torch.compile's"]
    print(table(headers, rows))
    made = f"Made by `python -m benchmarks.cold --rounds {options.rounds}`: one thread, caches off, a process for each figure."
    REPORT.write_text(f"# The first step of a process\n\n{made}\n\n{table(headers, rows, markdown=True)}\n")


def rows_of(model: str, rounds: int) -> list[list[str]]:
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(rounds):
        for name, own in seconds.items():
            own.append(seconds_elsewhere(model, name))
    medians = {name: statistics.median(own) for name, own in seconds.items()}
    return [
        [model, name, f"{median:.2f}", f"{medians['torch.compile'] / median:.1f} times" if "gradc" in name else ""]
        for name, median in medians.items()
    ]


def seconds_elsewhere(model: str, contender: str) -> float:
    command = [sys.executable, "-m", "benchmarks.cold", "--one", model, contender]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def seconds_here(model: str, contender: str) -> float:
    prepare()
    with CONTENDERS[contender].settings():
        return first_call(MODELS[model](CONTENDERS[contender].compile), contender)


if __name__ == "__main__":
    main()
