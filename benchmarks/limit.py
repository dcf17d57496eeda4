"""How far whole steps are from their kernels: what these take by themselves, back to back, beside gradc's step.

    gradc bench limit [--only mlp,gpt] [--rounds N] [--threads N] [--others] [--calls N]

For each model of models.py, in us. *kernels*: the calls of the captured forward and backward Programs on memory that lies
ready, no tensor made and nothing between them, and the optimizer's formula over all parameters. A call that does not go
straight to memory counts with its tensors (*with tensors*: how many there are; ``--others`` names them). *replay*: the
Programs as gradc runs them one by one, with what they allocate; a step in which they are joined may take less. *step*: the
whole compiled step with Adam. Bits are eager's throughout, so no kernel could be left out; what stands between them could, and
passes over memory. Medians. ``--calls`` lists the calls that take longest, each by itself: which kernel to look at next.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

import gradc
from benchmarks.common import Step, fresh, prepare
from benchmarks.models import SMALL
from benchmarks.runs import add_only
from benchmarks.step import WAYS, training
from gradc import executor, native
from gradc.optim import formulas, native_step
from gradc.text_table import table

HEADERS = ["model", "calls", "with tensors", "kernels", "of which Adam", "replay", "replay / kernels", "step", "step / kernels"]
_WARM_UP = 300


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds: of a step's Programs by their kernels alone and as they are replayed, of Adam's kernels, of the step.

    ``others``: the ops that are called with tensors.
    """

    num_direct: int
    others: list[str]
    kernels: float
    replay: float
    adam: float
    step: float

    def row(self, model: str) -> list[str]:
        kernels, replay = self.kernels + self.adam, self.replay + self.adam
        calls = [str(self.num_direct + len(self.others)), str(len(self.others))]
        us = [f"{1e6 * seconds:.0f}" for seconds in (kernels, self.adam, replay, self.step)]
        return [model, *calls, *us[:3], f"{replay / kernels:.2f}", us[3], f"{self.step / kernels:.2f}"]


def measure(model: str, rounds: int) -> Times:
    limits = list(_limits(model))
    times = [limit.time(rounds) for limit in limits]
    made = training(model, WAYS["gradc: step"])
    for _ in range(_WARM_UP):
        made.step()
    return Times(
        num_direct=sum(limit.num_direct for limit in limits),
        others=[name for limit in limits for name in limit.others],
        kernels=sum(kernels for kernels, _ in times),
        replay=sum(replay for _, replay in times),
        adam=_seconds_of_adam(made.optimizer, rounds),
        step=_seconds_of(made.step, rounds),
    )


def calls_of(model: str, rounds: int, count: int) -> str:
    """The calls that take longest, those that are alike together."""
    seconds, numbers = collections.Counter[str](), collections.Counter[str]()
    for limit in _limits(model):
        for what, is_direct, each in limit.each(rounds):
            name = what if is_direct else f"{what} (with tensors)"
            seconds[name] += each
            numbers[name] += 1
    rows = [[f"{1e6 * each:.1f}", str(numbers[name]), name] for name, each in seconds.most_common(count)]
    return table(["us", "calls", model], rows)


def _limits(model: str) -> Iterator[Any]:
    """Of the Programs of one forward and backward, with the inputs that they are called with."""
    torch.manual_seed(0)
    step = fresh("models").MODELS[model](lambda target: target)
    for captured in gradc.programs(step, with_inputs=True)():
        plan = executor.lower(captured.program)
        if captured.inputs is not None:
            yield native.extension.Limit(plan, list(captured.inputs))


def _seconds_of_adam(optimizer: torch.optim.Optimizer, rounds: int) -> float:
    """Of the formula over all parameters that have a gradient."""
    (group,) = optimizer.param_groups
    formula = formulas.adam(False, False, False, False)
    params = [param for param in group["params"] if param.grad is not None]
    state = [[optimizer.state[param][name] for param in params] for name in formula.operands[2:]]
    settings = {"lr": group["lr"], "beta1": group["betas"][0], "beta2": group["betas"][1], "eps": group["eps"]}
    columns = [[param.detach() for param in params], [param.grad for param in params], *state]
    return native_step.prepared(formula).time(columns, formula.numbers(settings, 10.0), rounds)


def _seconds_of(step: Step, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(prog="gradc bench limit", description="Whole steps beside their kernels alone.")
    add_only(parser, SMALL)
    parser.add_argument("--rounds", type=int, default=300, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--others", action="store_true", help="name the ops that are called with tensors")
    parser.add_argument("--calls", type=int, default=0, metavar="N", help="list the N kinds of calls that take longest")
    options = parser.parse_args()
    prepare(options.threads)
    measured = {model: measure(model, options.rounds) for model in options.only}
    print(table(HEADERS, [times.row(model) for model, times in measured.items()]))
    for model in options.only if options.calls else ():
        print("", calls_of(model, options.rounds, options.calls), sep="\n")
    for model, times in measured.items() if options.others else ():
        counts = collections.Counter(times.others).most_common()
        print(f"{model}: {', '.join(f'{name} x {count}' for name, count in counts)}")


if __name__ == "__main__":
    main()
