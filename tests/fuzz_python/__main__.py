"""A differential fuzzer of capture: random Python around tensor code, eager against gradc.

    python -m tests.fuzz_python --programs 500 --seed 0 --jobs 2
    python -m tests.fuzz_python --show 17 --seed 0          print one program and its verdict

A wrong program is shrunk and printed as a file that runs, one for each kind of difference and process. Ends with 1 if there was
any, a call that ran nothing compiled and counted nothing, a crash or a hang.
"""

from __future__ import annotations

import logging
import sys

from tests.fuzz_driver import Fuzzer, main
from tests.fuzz_python.generate import generate
from tests.fuzz_python.judge import BAD, Verdict, as_file, judge, kind_of, shrink

HASH_SEED = "0"  # the order of sets of strings hangs on it


def _show(text: str, verdict: Verdict) -> str:
    return "\n".join([as_file(text), verdict.status, verdict.detail, *verdict.counted])


FUZZER = Fuzzer(
    module="tests.fuzz_python",
    about="A differential fuzzer of capture: random Python around tensor code, eager against gradc.",
    bad=BAD,
    generate=lambda options, number: generate(options.seed, number),
    judge=judge,
    kind_of=lambda verdict: f"{verdict.status} {kind_of(verdict.detail)}",
    shrink=shrink,
    show=_show,
    print_found=lambda options, number, text: as_file(text),
    reasons=lambda line: line.get("counted", ()),
    quiet=lambda: logging.getLogger("torch").setLevel(logging.CRITICAL),
    reason_label="in part",
    environment=(("PYTHONHASHSEED", HASH_SEED),),
    max_found=50,
)

if __name__ == "__main__":
    sys.exit(main(FUZZER))
