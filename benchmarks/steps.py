"""Forward and backward of every model in models.py: time, first call, peak memory; a table and a plot.

    gradc bench [--only mlp,gpt] [--contender NAME]... [--threads N] [--resume] [--seconds S] [--out FOLDER]

Stores FOLDER/benchmarks/threads-N.json, and writes FOLDER/benchmarks.md and its plots from all that is stored there. A
model's results are stored as soon as it is done, in place of its older ones: an interrupted run loses nothing that is
finished, and ``--resume`` does the models that are not. With everything: about a quarter of an hour for each number of
threads, most of it in Inductor. Run it while the machine does nothing else. Steps with an optimizer: ``gradc bench step``.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch

import gradc
from benchmarks.common import CONTENDERS, Step, failure, first_call, fresh, peak_bytes, prepare, race, warm_up
from benchmarks.report import BACKWARD
from benchmarks.results import BackwardResult
from benchmarks.runs import add_arguments, run

DEFAULT_CONTENDERS = [name for name in CONTENDERS if name != "torch.compile aot_eager"]


def main() -> None:
    options = parse()
    contenders = ["eager", *(name for name in options.contender or DEFAULT_CONTENDERS if name != "eager")]
    prepare(options.threads)
    warm_up(contenders)
    run("gradc bench", BACKWARD, options, lambda model: measure(model, contenders, options.seconds))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gradc bench", description="Time training steps against eager and torch.compile.")
    add_arguments(parser)
    parser.add_argument(
        "--contender",
        action="append",
        choices=CONTENDERS,
        metavar="NAME",
        help=f"beside eager; may be repeated. Of: {', '.join(CONTENDERS)}. Default: all but torch.compile aot_eager",
    )
    return parser.parse_args()


def measure(model: str, contenders: list[str], seconds: float) -> list[BackwardResult]:
    torch._dynamo.reset()
    steps: dict[str, Step] = {}
    found: dict[str, BackwardResult] = {}
    for name in contenders:
        try:
            with CONTENDERS[name].settings():
                found[name], steps[name] = _warmed_up(model, name)
        except Exception as error:
            if name == "eager":
                raise
            found[name] = BackwardResult(name, error=failure(error))
    for name, timing in race(steps, seconds).items():
        found[name] = dataclasses.replace(found[name], seconds=timing.seconds, ratio=timing.ratio)
    return list(found.values())


def _warmed_up(model: str, contender: str) -> tuple[BackwardResult, Step]:
    torch.manual_seed(0)
    way = CONTENDERS[contender]
    step = way.compile_step(fresh("models").MODELS[model](way.compile))
    seconds = first_call(step, contender, may_fall_back=True)
    for _ in range(5):
        step()
    peak, before = peak_bytes(step), gradc.counters["fallbacks"].copy()
    step()
    fallbacks = dict(gradc.counters["fallbacks"] - before)
    return BackwardResult(contender, first_call=seconds, peak_bytes=peak, fallbacks=fallbacks), step


if __name__ == "__main__":
    main()
