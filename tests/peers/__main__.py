"""Run everything that PyTorch's tests check and that lies here, under gradc: `make peers`.

    python -m tests.peers                    every suite
    python -m tests.peers behaviours --only hook

Prints each difference from eager, and one line for each suite. Exits with 1 if there was any.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Iterator

import torch

from tests.peers.behaviours import BEHAVIOURS, WAYS
from tests.peers.custom_ops import custom_ops
from tests.peers.gradients import gradients
from tests.peers.optimizers import optimizers
from tests.peers.refused import refused
from tests.peers.transforms import transforms
from tests.peers.verdict import Verdict


def behaviours(only: str) -> Iterator[Verdict]:
    """Small programs, each a compiled function, a captured backward, and both."""
    for one in BEHAVIOURS:
        if only not in f"{one.about} {one.name}":
            continue
        for way in WAYS:
            report = one.run(way)
            yield Verdict(f"{one.about}: {one.name} under {way.name}", report.differences, tuple(report.fallbacks))


SUITES = {
    "behaviours": behaviours,
    "custom_ops": custom_ops,
    "optimizers": optimizers,
    "refused": refused,
    "gradients": gradients,
    "transforms": transforms,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="all, if not said")
    parser.add_argument("--only", default="", help="only names that contain this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    return max([_run(name, options.only) for name in options.suites or SUITES])


def _run(name: str, only: str) -> int:
    started, verdicts = time.time(), []
    for verdict in SUITES[name](only):
        verdicts.append(verdict)
        if verdict.differences or only:
            print(verdict, flush=True)
    bad = sum(bool(verdict.differences) for verdict in verdicts)
    eagerly = sum(bool(verdict.fallbacks) for verdict in verdicts)
    print(
        f"{name}: {len(verdicts)} programs, {bad} differ, {eagerly} run in part eagerly; {time.time() - started:.0f} s",
        flush=True,
    )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
