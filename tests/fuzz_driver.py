"""What runs a differential fuzzer: processes that judge programs, a crash of one noted, what is wrong shrunk and printed.

    main: (Fuzzer, words of the command line) -> status: 1 if a program was wrong, crashed or hung

Process k of n judges every n-th program from the k-th on, and appends a line for each to its file; one that ends early is
followed by another, behind the program that ended it.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

import gradc
from gradc import native
from tests.compilers import Compiler, find
from tests.shadow.told import listen, tally, told

Line = dict[str, Any]  # number, and the fields of a verdict
ALARM = "alarm"  # of shadow mode, which GRADC_VERIFY_CALLS=1 has beside the compiler


@dataclasses.dataclass(frozen=True)
class Fuzzer:
    """A kind of programs, and what is wrong with one.

    Attributes:
        module: what ``python -m`` runs.
        about: a sentence for ``--help``.
        bad: the statuses of verdicts that are faults.
        generate: the program of a number; the options hold the seed and the flags.
        judge: a verdict with a ``status`` and a ``detail``.
        kind_of: of the faults of one kind a process prints only the first.
        shrink: a smaller program that is wrong in the same way.
        show: text for ``--show``.
        print_found: text for a fault, of a program that was shrunk.
        reasons: why a line's program ran partly in eager.
        quiet: silences what programs are known to say.
        reason_label: stands before each reason in the report.
        flags: further options that say which programs there are, each with its help.
        environment: of the processes.
        max_found: a process stops after so many faults.
        has_eager_crashes: some programs end the process in eager, too.
    """

    module: str
    about: str
    bad: tuple[str, ...]
    generate: Callable[[argparse.Namespace, int], Any]
    judge: Callable[[Any, Compiler], Any]
    kind_of: Callable[[Any], str]
    shrink: Callable[[Any, Compiler], Any]
    show: Callable[[Any, Any], str]
    print_found: Callable[[argparse.Namespace, int, Any], str]
    reasons: Callable[[Line], Iterable[str]]
    quiet: Callable[[], None]
    reason_label: str
    flags: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    max_found: int = 10
    has_eager_crashes: bool = False


def main(fuzzer: Fuzzer, words: Sequence[str] | None = None) -> int:
    options = _parse(fuzzer, words)
    if options.show is not None:
        return _show(fuzzer, options)
    if options.worker:
        _work(fuzzer, options, pathlib.Path(options.worker))
        return 0
    return _fuzz(fuzzer, options)


def _parse(fuzzer: Fuzzer, words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {fuzzer.module}", description=fuzzer.about)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--compiler", default="gradc")
    parser.add_argument("--show", type=int, help="print this program and its verdict")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--max-found", type=int, default=fuzzer.max_found, help="stop a process after so many wrong programs")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    for flag, about in fuzzer.flags:
        parser.add_argument(flag, action="store_true", help=about)
    return parser.parse_args(words)


def _show(fuzzer: Fuzzer, options: argparse.Namespace) -> int:
    _quiet(fuzzer)
    program = fuzzer.generate(options, options.show)
    _make_sized_plans_after(options.show % 3)
    verdict = _judge(fuzzer, program, find(options.compiler))
    print(fuzzer.show(program, verdict))
    return int(_is_bad(fuzzer, verdict.status))


def _make_sized_plans_after(runs: int) -> None:
    """Programs are called a few times, so sizes seldom come back as often as they do in a training."""
    if native.is_built():
        native.extension.set_runs_before_sized_plans(runs)


def _is_bad(fuzzer: Fuzzer, status: str) -> bool:
    return status == ALARM or status in fuzzer.bad


def _judge(fuzzer: Fuzzer, program: Any, compiler: Compiler) -> Any:
    told.clear()
    verdict = fuzzer.judge(program, compiler)
    return dataclasses.replace(verdict, status=ALARM, detail="; ".join(told)) if told else verdict


def _quiet(fuzzer: Fuzzer) -> None:
    fuzzer.quiet()
    torch.set_num_threads(1)
    if gradc.config.verify:
        listen()


def _fuzz(fuzzer: Fuzzer, options: argparse.Namespace) -> int:
    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / f"{job}.jsonl" for job in range(options.jobs)]
        processes = [_start(fuzzer, options, options.first + job, file) for job, file in enumerate(files)]
        while any(process.poll() is None for process in processes):
            time.sleep(0.2)
            for job, process in enumerate(processes):
                if process.poll() not in (None, 0):
                    following = _record_crash(fuzzer, options, job, files[job])
                    processes[job] = _start(fuzzer, options, following, files[job])
        lines = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    return _report(fuzzer, options, lines, time.time() - started)


def _report(fuzzer: Fuzzer, options: argparse.Namespace, lines: list[Line], seconds: float) -> int:
    counts = collections.Counter(line["status"] for line in lines)
    print(f"seed {options.seed}, {len(lines)} programs from {options.first} on: {dict(counts)}; {seconds:.0f} s")
    verified = sum((collections.Counter(line.get("verified", {})) for line in lines), collections.Counter[str]())
    for name, number in verified.most_common():
        print(f"  verified {number}: {name}")
    reasons = collections.Counter(reason for line in lines for reason in fuzzer.reasons(line))
    for reason, number in reasons.most_common():
        print(f"  {fuzzer.reason_label} {number}: {reason}")
    for line in lines:
        if _is_bad(fuzzer, line["status"]):
            print(f"  {line['status']}, program {line['number']}: {line['detail'][:160]}")
    return int(any(_is_bad(fuzzer, status) for status in counts))


def _start(fuzzer: Fuzzer, options: argparse.Namespace, first: int, file: pathlib.Path) -> subprocess.Popen[bytes]:
    command = [*_command(fuzzer, options), "--worker", str(file), "--first", str(first), "--compiler", options.compiler]
    command += ["--programs", str(options.first + options.programs - first), "--jobs", str(options.jobs)]
    command += ["--max-found", str(options.max_found), *["--no-shrink"] * options.no_shrink]
    return subprocess.Popen(command, env=os.environ | dict(fuzzer.environment))


def _command(fuzzer: Fuzzer, options: argparse.Namespace) -> list[str]:
    """With the options that say which programs there are."""
    flags = [flag for flag, _ in fuzzer.flags if getattr(options, flag.removeprefix("--"))]
    return [sys.executable, "-m", fuzzer.module, "--seed", str(options.seed), *flags]


def _record_crash(fuzzer: Fuzzer, options: argparse.Namespace, job: int, file: pathlib.Path) -> int:
    """Note the crash of the program after the last one in ``file``; returns the number of the one after that."""
    done = len(file.read_text().splitlines()) if file.exists() else 0
    number = options.first + job + done * options.jobs
    status = "eager crashes" if fuzzer.has_eager_crashes and _crashes_in_eager(fuzzer, options, number) else "crash"
    if status == "crash":
        print(f"# crash: program {number} of seed {options.seed} ended the process", flush=True)
    _append(file, {"number": number, "status": status, "detail": ""})
    return number + options.jobs


def _crashes_in_eager(fuzzer: Fuzzer, options: argparse.Namespace, number: int) -> bool:
    command = [*_command(fuzzer, options), "--show", str(number), "--compiler", "eager"]
    return subprocess.run(command, capture_output=True, env=os.environ | dict(fuzzer.environment)).returncode < 0


def _work(fuzzer: Fuzzer, options: argparse.Namespace, file: pathlib.Path) -> None:
    _quiet(fuzzer)
    compiler, kinds = find(options.compiler), collections.Counter[str]()
    for number in range(options.first, options.first + options.programs, options.jobs):
        program = fuzzer.generate(options, number)
        _make_sized_plans_after(number % 3)
        verdict = _judge(fuzzer, program, compiler)
        _append(file, {"number": number, **vars(verdict), "verified": dict(tally)})
        tally.clear()
        if _is_bad(fuzzer, verdict.status):
            kind = fuzzer.kind_of(verdict)
            kinds[kind] += 1
            if kinds[kind] == 1:
                _print_found(fuzzer, options, number, program, verdict)
        if kinds.total() >= options.max_found:
            break


def _print_found(fuzzer: Fuzzer, options: argparse.Namespace, number: int, program: Any, verdict: Any) -> None:
    if not options.no_shrink and verdict.status not in ("hang", ALARM):
        program = fuzzer.shrink(program, find(options.compiler))
    said = f"program {number}, {verdict.status}: {verdict.detail}".replace("\n", "\n# ")
    print(f"# {said}\n{fuzzer.print_found(options, number, program)}\n", flush=True)


def _append(file: pathlib.Path, line: Line) -> None:
    with file.open("a") as out:
        out.write(json.dumps(line) + "\n")
