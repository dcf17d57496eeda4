"""The programs of tests.devices, and all cases of tests.semantics, on the simulated device: what came of each.

python -m tests.devices [--only WORDS] [--compiler gradc] [--device simulated]
"""

from __future__ import annotations

import argparse
import collections
import sys

from tests.devices.processes import run
from tests.devices.registry import load
from tests.semantics.table import load as load_cases

OTHER_PROCESSES = ("distributed_ddp",)  # which know nothing of the device


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.devices", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="only jobs whose name contains this")
    parser.add_argument("--compiler", default="gradc", help="what to compare with eager (tests/compilers.py)")
    parser.add_argument("--device", default="simulated")
    options = parser.parse_args()
    cases = [case for case in load_cases() if case.room not in OTHER_PROCESSES]
    names = [*load(), *(f"semantics.{case.room}.{case.name}" for case in cases)]
    jobs = [f"{options.compiler}:{name}" for name in names if options.only in name]
    outcomes = run(jobs, options.device, seconds=3600)
    for job, outcome in outcomes.items():
        print(f"{job}: {outcome}")
    kinds = collections.Counter(str(outcome).split(":")[0].split(";")[0] for outcome in outcomes.values())
    print(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    return int(any(outcome.differences for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
