"""A differential fuzzer of Python's own types, eager against gradc.

    python -m tests.fuzz_types --programs 5000 --seed 0 --jobs 2
    python -m tests.fuzz_types --show 17 --seed 0          print one program and its verdict

Ends with 1 if there was a wrong one.
"""

from __future__ import annotations

import logging
import sys

from tests.fuzz_driver import Fuzzer, main
from tests.fuzz_types.generate import Program, generate
from tests.fuzz_types.judge import BAD, Verdict, judge


def _text(program: Program) -> str:
    return f"# v = {program.value}\n{program.source()}"


def _show(program: Program, verdict: Verdict) -> str:
    return "\n".join([_text(program), verdict.status, verdict.detail])


FUZZER = Fuzzer(
    module="tests.fuzz_types",
    about="A differential fuzzer of Python's own types, eager against gradc.",
    bad=BAD,
    generate=lambda options, number: generate(options.seed, number),
    judge=judge,
    kind_of=lambda verdict: str(verdict.detail),
    shrink=lambda program, compiler: program,
    show=_show,
    print_found=lambda options, number, program: _text(program),
    reasons=lambda line: (),
    quiet=lambda: logging.getLogger("torch").setLevel(logging.CRITICAL),
    reason_label="",
    max_found=100,
)

if __name__ == "__main__":
    sys.exit(main(FUZZER))
