"""The cost of one call: Linear(32, 32) + tanh, batch 8, forward and backward."""

from __future__ import annotations

from benchmarks.common import CONTENDERS, first_call, fresh, prepare, race, reported, warm_up
from gradc.text_table import table

NAMES = ["eager", "torch.compile aot_eager", "torch.compile", "gradc"]


def main() -> None:
    prepare()
    warm_up(NAMES)
    steps = {}
    for name in NAMES:
        with reported(name):
            step = fresh("models").linear_tanh(CONTENDERS[name].compile)
            first_call(step, name)
            for _ in range(20):
                step()
            steps[name] = step
    timings = race(steps)
    rows = [[name, f"{1e6 * timing.seconds:.0f}", f"{timing.ratio:.2f}"] for name, timing in timings.items()]
    print(table(["Linear+Tanh, forward + backward", "us", "of eager"], rows))


if __name__ == "__main__":
    main()
