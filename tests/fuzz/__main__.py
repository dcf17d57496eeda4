"""A differential fuzzer: random programs, eager against a compiler.

    python -m tests.fuzz --programs 200 --seed 0 --jobs 2
    python -m tests.fuzz --show 17 --seed 0              print one program and its verdict
    python -m tests.fuzz --gradients                     with calls of torch.autograd.grad inside the function
    python -m tests.fuzz --repeats                       the same, and every other expression for the second time
    python -m tests.fuzz --straight                      as steps whose loss goes straight to backward(), called six times
    python -m tests.fuzz --chains                        long chains of pointwise operations, odd sizes, strides and values
    python -m tests.fuzz --vary --compiler captured      each at several sizes and with several numbers, compiled once

A wrong program is shrunk to a few lines and printed as a test, one for each kind of difference and process. Ends with
1 if there was any, a crash or a hang.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import warnings

from tests.fuzz.chains import generate_chain
from tests.fuzz.generate import generate
from tests.fuzz.judge import BAD, Verdict, judge, kind_of, shrink
from tests.fuzz.program import VARIED, Program
from tests.fuzz.statements import TABLE, WITH_GRADIENTS, WITH_REPEATS
from tests.fuzz.straight import as_step
from tests.fuzz_driver import Fuzzer, main

FLAGS = (
    ("--vary", "run each at several sizes and with several numbers"),
    ("--gradients", "many calls of torch.autograd.grad inside the function"),
    ("--repeats", "the same, and every other expression for the second time"),
    ("--chains", "long chains of pointwise operations"),
    ("--straight", "as steps whose loss goes straight to backward(), called six times; with any of the others"),
)


def _generate(options: argparse.Namespace, number: int) -> Program:
    table = WITH_REPEATS if options.repeats else WITH_GRADIENTS if options.gradients else TABLE
    program = generate_chain(options.seed, number) if options.chains else generate(options.seed, number, table)
    program = as_step(program) if options.straight else program
    return dataclasses.replace(program, changes=VARIED) if options.vary else program


def _show(program: Program, verdict: Verdict) -> str:
    return "\n".join([program.source(), str(program.inputs), verdict.status, verdict.detail])


def _quiet() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


FUZZER = Fuzzer(
    module="tests.fuzz",
    about="A differential fuzzer: random programs, eager against a compiler.",
    bad=BAD,
    generate=_generate,
    judge=judge,
    kind_of=lambda verdict: kind_of(verdict.detail),
    shrink=shrink,
    show=_show,
    print_found=lambda options, number, program: program.test(f"seed_{options.seed}_program_{number}"),
    reasons=lambda line: [line["detail"]] if line["status"] == "eagerly" else [],
    quiet=_quiet,
    reason_label="eagerly",
    flags=FLAGS,
    has_eager_crashes=True,
)

if __name__ == "__main__":
    sys.exit(main(FUZZER))
