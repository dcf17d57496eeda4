"""Is a program wrong under a compiler? And the smallest one that is wrong in the same way.

judge: (Program, Compiler) -> Verdict        shrink: (Program, Compiler) -> Program
"""

from __future__ import annotations

import dataclasses
import re
import signal
import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.compilers import DYNAMO, DYNAMO_BY_GRADC, EAGER, GRADC, Compiler
from tests.fuzz.program import Program, smaller
from tests.oracle import Report, compare_runs

TIMEOUT_SECONDS = 30
BAD = ("wrong", "hang", "crash", GRADC.name)  # statuses; the last where gradc is what a compiler stands on

_MEDIANS = (torch.ops.aten.median.dim, torch.ops.aten.nanmedian.dim)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """``status``: ok, eagerly (a part ran eagerly), undefined (eager reads memory that nobody wrote), the name of a compiler
    that this one stands on and that differs too (dynamo, gradc), wrong, hang.
    """

    status: str
    detail: str = ""


class _Hang(BaseException):
    pass


def judge(program: Program, compiler: Compiler) -> Verdict:
    """Compare one program with eager."""
    report = _compare(program, compiler) or _compare(program, compiler)  # a process that was paused looks like one that hangs
    if report is None:
        return Verdict("hang")
    if not report.differences:
        return Verdict("eagerly", ", ".join(report.fallbacks)) if report.fallbacks else Verdict("ok")
    if is_undefined(program) or any(_is_different(program, EAGER) for _ in range(3)):
        return Verdict("undefined")
    for below in _below(compiler):
        if _is_different(program, below):
            return Verdict(below.name, report.differences[0])
    return Verdict("wrong", "\n".join(report.differences[:4]))


def shrink(program: Program, compiler: Compiler, seconds: float = 90) -> Program:
    """Take parts away as long as it stays wrong in the same way, and an eager run of it stays possible."""
    report = _compare(program, compiler)
    if report is None or not report.differences:
        return program
    wrong = kind_of(report.differences[0])
    deadline = time.time() + seconds
    progress = True
    while progress and time.time() < deadline:
        progress = False
        for candidate in smaller(program):
            if time.time() > deadline:
                break
            if _is_wrong(candidate, compiler, wrong):
                program, progress = candidate, True
                break
    return program


def kind_of(difference: str) -> str:
    """``values differ``, ``missing``, ``raises RuntimeError``: a difference without the place and the numbers."""
    text = difference.split("\n")[0]
    if not text.startswith("raises"):
        text = text.partition(": ")[2] or text
    return re.split(r"[:(,;]|\d", text)[0].strip()


def _is_wrong(program: Program, compiler: Compiler, wrong: str) -> bool:
    try:
        report = _compare(program, compiler)
    except Exception:
        return False
    if report is None or not report.differences or report.eager.error is not None:
        return False
    if kind_of(report.differences[0]) != wrong:
        return False
    return not any(_is_different(program, below) for below in _below(compiler))


def is_undefined(program: Program) -> bool:
    """Eager reads memory that nobody wrote: rrelu saves its noise before the kernel writes it, and hooks pack what is there;
    and see _StridelessMedians.
    """
    text = program.source()
    return ("rrelu" in text and "packed_as_double()" in text) or ("median" in text and _has_strideless_medians(program))


def _has_strideless_medians(program: Program) -> bool:
    medians = _StridelessMedians()
    with medians:
        _compare(program, EAGER)
    return medians.are_found


class _StridelessMedians(TorchDispatchMode):
    """Looks for medians along a dimension that was expanded: torch's kernel takes its stride of 0 for that of a copy."""

    are_found = False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op in _MEDIANS and args[0].dim():
            self.are_found |= args[0].stride(args[1]) == 0 and args[0].size(args[1]) > 1
        return op(*args, **(kwargs or {}))


def _below(compiler: Compiler) -> tuple[Compiler, ...]:
    """What a compiler stands on, and what may be to blame for a difference."""
    if compiler.name in ("dynamo", "captured"):
        return ()
    return (DYNAMO, DYNAMO_BY_GRADC, GRADC) if compiler.is_captured else (DYNAMO, DYNAMO_BY_GRADC)


def _is_different(program: Program, compiler: Compiler) -> bool:
    report = _compare(program, compiler)
    return report is None or bool(report.differences)


def _compare(program: Program, compiler: Compiler) -> Report | None:
    """None for a hang.

    The gradient of copysign's second argument is zeros, which eager's formula makes and then fills: a write, a version more.
    """

    def stop(*_: Any) -> None:
        raise _Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(TIMEOUT_SECONDS * len(program.changes))
    try:
        return compare_runs(program.runs(), compiler, compare_counters="copysign" not in program.source())
    except _Hang:
        return None
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
