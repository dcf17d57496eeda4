"""A differential fuzzer: random programs, eager against a compiler.

    python -m tests.fuzz --programs 200 --seed 0 --jobs 2
    python -m tests.fuzz --show 17 --seed 0              print one program and its verdict
    python -m tests.fuzz --gradients                     with calls of torch.autograd.grad inside the function
    python -m tests.fuzz --vary --compiler captured      each at several sizes and with several numbers, compiled once

A wrong program is shrunk to a few lines and printed as a test, one for each kind of difference and process. Ends with
1 if there was any, a crash or a hang.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import logging
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

import torch

from tests.compilers import find
from tests.fuzz.generate import generate
from tests.fuzz.judge import BAD, Verdict, judge, kind_of, shrink
from tests.fuzz.program import VARIED, Program
from tests.fuzz.statements import TABLE, WITH_GRADIENTS


def main() -> int:
    options = _parse()
    if options.show is not None:
        return _show(options)
    if options.worker:
        _work(options, pathlib.Path(options.worker))
        return 0
    return _fuzz(options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--compiler", default="gradc")
    parser.add_argument("--show", type=int, help="print this program and its verdict")
    parser.add_argument("--vary", action="store_true", help="run each at several sizes and with several numbers")
    parser.add_argument("--gradients", action="store_true", help="many calls of torch.autograd.grad inside the function")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--max-found", type=int, default=10, help="stop a process after so many wrong programs")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _show(options: argparse.Namespace) -> int:
    _quiet()
    program = _generate(options, options.show)
    verdict = judge(program, find(options.compiler))
    print(program.source())
    print(program.inputs, verdict.status, verdict.detail, sep="\n")
    return int(verdict.status in BAD)


def _fuzz(options: argparse.Namespace) -> int:
    started = time.time()
    last = options.first + options.programs
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / f"{number}.jsonl" for number in range(options.jobs)]
        starts = [options.first + number for number in range(options.jobs)]
        processes = [_start(options, start, file) for start, file in zip(starts, files)]
        while any(process.poll() is None for process in processes):
            time.sleep(0.2)
            for number, process in enumerate(processes):
                if process.poll() not in (None, 0):
                    following = _record_crash(files[number], starts[number], options)
                    processes[number] = _start(options, following, files[number])
        lines = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    counts = collections.Counter(line["status"] for line in lines)
    reasons = collections.Counter(line["detail"] for line in lines if line["status"] == "eagerly")
    seconds = time.time() - started
    print(f"seed {options.seed}, programs {options.first} to {last - 1}: {dict(counts)}; {seconds:.0f} s")
    for reason, count in reasons.most_common():
        print(f"  eagerly {count}: {reason}")
    for line in lines:
        if line["status"] in BAD:
            print(f"  {line['status']}, program {line['number']}: {kind_of(line['detail'])}")
    return int(any(counts[status] for status in BAD))


def _start(options: argparse.Namespace, first: int, file: pathlib.Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.fuzz", "--worker", str(file), "--first", str(first)]
    command += ["--programs", str(options.first + options.programs - first), "--seed", str(options.seed)]
    command += ["--jobs", str(options.jobs), "--compiler", options.compiler, "--max-found", str(options.max_found)]
    return subprocess.Popen([*command, *["--no-shrink"] * options.no_shrink, *_kinds(options)])


def _kinds(options: argparse.Namespace) -> list[str]:
    """The options that say which programs there are."""
    return ["--vary"] * options.vary + ["--gradients"] * options.gradients


def _record_crash(file: pathlib.Path, start: int, options: argparse.Namespace) -> int:
    """Note the crash of the program after the last one in ``file``; returns the number of the one after that.

    Some programs end the process in eager, too.
    """
    done = len(file.read_text().splitlines()) if file.exists() else 0
    number = start + done * options.jobs
    command = [sys.executable, "-m", "tests.fuzz", "--show", str(number), "--seed", str(options.seed)]
    command += _kinds(options)
    in_eager = subprocess.run([*command, "--compiler", "eager"], capture_output=True).returncode
    status = "eager crashes" if in_eager < 0 else "crash"
    if status == "crash":
        print(f"# crash: program {number} of seed {options.seed} ended the process", flush=True)
    _append(file, {"number": number, "status": status, "detail": ""})
    return number + options.jobs


def _work(options: argparse.Namespace, file: pathlib.Path) -> None:
    _quiet()
    compiler = find(options.compiler)
    kinds: collections.Counter[str] = collections.Counter()
    for number in range(options.first, options.first + options.programs, options.jobs):
        program = _generate(options, number)
        verdict = judge(program, compiler)
        _append(file, {"number": number, "status": verdict.status, "detail": verdict.detail})
        if verdict.status in BAD:
            kind = kind_of(verdict.detail)
            kinds[kind] += 1
            if kinds[kind] == 1:
                _print_found(options, number, program, verdict)
        if kinds.total() >= options.max_found:
            break


def _generate(options: argparse.Namespace, number: int) -> Program:
    program = generate(options.seed, number, WITH_GRADIENTS if options.gradients else TABLE)
    return dataclasses.replace(program, changes=VARIED) if options.vary else program


def _print_found(options: argparse.Namespace, number: int, program: Program, verdict: Verdict) -> None:
    if not options.no_shrink and verdict.status != "hang":
        program = shrink(program, find(options.compiler))
    text = program.test(f"seed_{options.seed}_program_{number}")
    print(f"# {verdict.status}: {verdict.detail}".replace("\n", "\n# ") + f"\n{text}\n", flush=True)


def _quiet() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def _append(file: pathlib.Path, line: dict[str, object]) -> None:
    with file.open("a") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
