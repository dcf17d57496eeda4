"""The fuzzers' programs under the live prototype: python -m prototypes.live.fuzz python|steps FIRST COUNT"""

from __future__ import annotations

import collections
import logging
import sys
from typing import Any

import torch

from prototypes.live.live import callbacks, ext, live
from tests.compilers import Compiler
from tests.fuzz_python.judge import judge


def wrap(target: Any, **options: Any) -> Any:
    if isinstance(target, torch.optim.Optimizer):
        target.step = live(target.step, [])
        return target
    if isinstance(target, torch.nn.Module):
        cls = type(target)
        names = {
            "forward": live(cls.forward, []),
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
        }
        target.__class__ = type(cls.__name__, (cls,), names)
        return target
    return live(target, [])


def main() -> None:
    kind, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    if kind == "python":
        from tests.fuzz_python.generate import generate
    else:
        from tests.fuzz_steps.generate import generate
    torch.set_num_threads(1)
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    found = collections.Counter[str]()
    for number in range(first, first + count):
        ext.reset()
        print(f"@{number}", end=" ", flush=True)
        verdict = judge(generate(seed, number), Compiler("live", wrap))
        found[verdict.status] += 1
        if verdict.status not in ("ok", "undefined"):
            print(f"\n{kind} {number}: {verdict.status} {verdict.detail[:300]}", flush=True)
    print(f"\n{dict(found)} {dict(ext.totals())} {dict(ext.counts())} {callbacks.why}")


main()
