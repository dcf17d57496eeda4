"""A differential fuzzer of capture: random Python around tensor code, eager against gradc.

    python -m tests.fuzz_python --programs 500 --seed 0 --jobs 2
    python -m tests.fuzz_python --show 17 --seed 0          print one program and its verdict

A wrong program is shrunk and printed as a file that runs, one for each kind of difference and process. Ends with 1 if there was
any, a call that ran nothing compiled and counted nothing, a crash or a hang.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch

from tests.compilers import find
from tests.fuzz_python.generate import generate
from tests.fuzz_python.judge import BAD, as_file, judge, kind_of, shrink

HASH_SEED = "0"  # the order of sets of strings hangs on it


def main() -> int:
    options = _parse()
    if options.show is not None:
        return _show(options)
    if options.worker:
        _work(options, pathlib.Path(options.worker))
        return 0
    return _fuzz(options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_python", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--compiler", default="gradc")
    parser.add_argument("--show", type=int, help="print this program and its verdict")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--max-found", type=int, default=50, help="stop a process after so many wrong programs")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _show(options: argparse.Namespace) -> int:
    _quiet()
    text = generate(options.seed, options.show)
    verdict = judge(text, find(options.compiler))
    print(as_file(text), verdict.status, verdict.detail, *verdict.counted, sep="\n")
    return int(verdict.status in BAD)


def _fuzz(options: argparse.Namespace) -> int:
    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / f"{number}.jsonl" for number in range(options.jobs)]
        processes = [_start(options, options.first + number, file) for number, file in enumerate(files)]
        while any(process.poll() is None for process in processes):
            time.sleep(0.2)
            for number, process in enumerate(processes):
                if process.poll() not in (None, 0):
                    processes[number] = _start(options, _record_crash(files[number], number, options), files[number])
        lines = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    return _report(options, lines, time.time() - started)


def _report(options: argparse.Namespace, lines: list[dict[str, object]], seconds: float) -> int:
    counts = collections.Counter(str(line["status"]) for line in lines)
    print(f"seed {options.seed}, {len(lines)} programs from {options.first} on: {dict(counts)}; {seconds:.0f} s")
    reasons = collections.Counter(reason for line in lines for reason in line["counted"])  # type: ignore[attr-defined]
    for reason, number in reasons.most_common():
        print(f"  in part {number}: {reason}")
    for line in lines:
        if line["status"] in BAD:
            print(f"  {line['status']}, program {line['number']}: {str(line['detail'])[:160]}")
    return int(any(counts[status] for status in BAD))


def _start(options: argparse.Namespace, first: int, file: pathlib.Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.fuzz_python", "--worker", str(file), "--first", str(first)]
    command += ["--programs", str(options.first + options.programs - first), "--seed", str(options.seed)]
    command += ["--jobs", str(options.jobs), "--compiler", options.compiler, "--max-found", str(options.max_found)]
    return subprocess.Popen([*command, *["--no-shrink"] * options.no_shrink], env=os.environ | {"PYTHONHASHSEED": HASH_SEED})


def _record_crash(file: pathlib.Path, job: int, options: argparse.Namespace) -> int:
    """Note the crash of the program after the last one in ``file``; returns the number of the one after that."""
    done = len(file.read_text().splitlines()) if file.exists() else 0
    number = options.first + job + done * options.jobs
    print(f"# crash: program {number} of seed {options.seed} ended the process", flush=True)
    _append(file, {"number": number, "status": "crash", "detail": "", "counted": []})
    return number + options.jobs


def _work(options: argparse.Namespace, file: pathlib.Path) -> None:
    _quiet()
    compiler, kinds = find(options.compiler), collections.Counter[str]()
    for number in range(options.first, options.first + options.programs, options.jobs):
        text = generate(options.seed, number)
        verdict = judge(text, compiler)
        _append(file, {"number": number, **vars(verdict)})
        if verdict.status in BAD:
            kind = f"{verdict.status} {kind_of(verdict.detail)}"
            kinds[kind] += 1
            if kinds[kind] == 1:
                smallest = text if options.no_shrink or verdict.status == "hang" else shrink(text, compiler)
                print(f"# program {number}, {verdict.status}: {verdict.detail}".replace("\n", "\n# "), flush=True)
                print(as_file(smallest), flush=True)
        if kinds.total() >= options.max_found:
            break


def _quiet() -> None:
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)


def _append(file: pathlib.Path, line: dict[str, object]) -> None:
    with file.open("a") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
