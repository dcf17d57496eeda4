"""Is a program wrong under gradc? And the smallest one that is wrong in the same way.

judge: text -> Verdict        shrink: text -> text        main: what a found program calls, run as a file
"""

from __future__ import annotations

import ast
import collections
import copy
import dataclasses
import pathlib
import re
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

import gradc
from tests.compilers import EAGER, GRADC, Compiler
from tests.fuzz_python.observe import Recorder, Snapshot, differences
from tests.fuzz_python.regions import num_regions_run, watching_regions

TIMEOUT_SECONDS = 40
BAD = ("wrong", "uncounted", "fails", "hang", "crash")
_FOOT = '\n\nif __name__ == "__main__":\n    from tests.fuzz_python.judge import main\n\n    raise SystemExit(main(__file__))\n'
_BROKEN = ("NameError", "UnboundLocalError", "SyntaxError", "IndentationError")  # what shrinking makes, when it takes too much


@dataclasses.dataclass(frozen=True)
class Verdict:
    """``status``: ok (compiled as a whole), in part (the rest is counted), undefined (eager differs from itself), wrong,
    uncounted (a call ran no region, or an optimizer's step, and counted nothing), fails (the program itself), hang.
    """

    status: str
    detail: str = ""
    counted: tuple[str, ...] = ()
    raises: bool = False


class _Hang(BaseException):
    pass


class _CountOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return op(*args, **(kwargs or {}))


def judge(text: str, compiler: Compiler = GRADC) -> Verdict:
    """Compare one program with eager."""
    is_late = False

    def stop(*_: Any) -> None:
        nonlocal is_late
        is_late = True
        raise _Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(TIMEOUT_SECONDS)
    try:
        verdict = _judge(text, compiler)
    except _Hang:
        return Verdict("hang")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Verdict("hang") if is_late else verdict  # where it fell into a weak reference's callback, Python passes it over


def _judge(text: str, compiler: Compiler) -> Verdict:
    try:
        eager = _eager(text)
    except Exception as error:
        return Verdict("fails", f"{type(error).__name__}: {error}")
    compiled, counted = _compiled(text, compiler)
    raises = any(snapshot.raised for snapshot in eager)
    if isinstance(compiled, str):
        return Verdict("wrong", compiled, counted, raises)
    if found := differences(eager, compiled):
        is_defined = not differences(eager, Recorder(EAGER).run(text))
        return Verdict("wrong" if is_defined else "undefined", "\n".join(found[:4]), counted, raises)
    if not compiler.is_gradc:
        return Verdict("ok", raises=raises)
    if (number := _uncounted(text, compiled)) is not None:
        return Verdict("uncounted", f"call {number}: no region, nothing counted", counted, raises)
    if (number := _uncounted_step(eager, compiled)) is not None:
        return Verdict("uncounted", f"call {number}: an optimizer's step, by whom is not counted", counted, raises)
    return Verdict("in part" if counted else "ok", "", counted, raises)


def _eager(text: str) -> list[Snapshot]:
    steps = list[None]()
    watching = register_optimizer_step_post_hook(lambda *_: steps.append(None))
    try:
        return Recorder(EAGER, lambda: (0, 0, len(steps))).run(text)
    finally:
        watching.remove()


def _compiled(text: str, compiler: Compiler) -> tuple[list[Snapshot] | str, tuple[str, ...]]:
    """What was seen, or the error that went past the calls; and the reasons that were counted."""
    compiler.reset()
    with watching_regions(), gradc.config.patch(compile_seconds=None):
        try:
            snapshots: list[Snapshot] | str = Recorder(compiler, lambda: (num_regions_run(), _num_counted(), _num_steps())).run(
                text
            )
        except Exception as error:
            snapshots = f"driver raises {type(error).__name__}: {error}"
    counted = tuple(_counted())
    compiler.reset()
    return snapshots, counted


def _counted() -> collections.Counter[str]:
    return gradc.counters["fallbacks"] + gradc.counters["uncompiled"]


def _num_counted() -> int:
    return _counted().total() + _num_compared()


def _num_steps() -> int:
    fallbacks = gradc.counters["fallbacks"]
    ended = fallbacks["error that a try or with has ended"]  # the function ran again as it was written, its optimizers too
    return gradc.counters["optim"].total() + fallbacks["optimizer"] + ended + _num_compared()


def _num_compared() -> int:
    """Calls that are eager's altogether, to be timed: how many hangs on the machine."""
    return gradc.counters["stats"]["calls run eagerly to compare"]


def _uncounted_step(eager: list[Snapshot], compiled: list[Snapshot]) -> int | None:
    both = enumerate(zip(eager, compiled, strict=True))
    return next((number for number, (theirs, ours) in both if theirs.num_steps and not ours.num_steps), None)


def _uncounted(text: str, compiled: list[Snapshot]) -> int | None:
    """The first call that ran no region and counted nothing, though eager calls torch there."""
    silent = [number for number, seen in enumerate(compiled) if not (seen.num_regions or seen.counted)]
    if not silent:
        return None
    mode = _CountOps()
    recorder = Recorder(EAGER, lambda: (mode.number, 0))
    with mode:
        eager = recorder.run(text)
    return next((number for number in silent if number < len(eager) and eager[number].num_regions), None)


def shrink(text: str, compiler: Compiler = GRADC, seconds: float = 90) -> str:
    """Take statements away as long as it stays wrong in the same way."""
    wrong, deadline, progress = judge(text, compiler), time.time() + seconds, True
    while progress and time.time() < deadline:
        progress = False
        for candidate in _smaller(text):
            if time.time() > deadline:
                break
            if candidate != text and _is_like(judge(candidate, compiler), wrong):
                text, progress = candidate, True
                break
    return text


def _is_like(verdict: Verdict, wrong: Verdict) -> bool:
    is_broken = any(name in verdict.detail for name in _BROKEN) and not any(name in wrong.detail for name in _BROKEN)
    same = verdict.status == wrong.status and kind_of(verdict.detail) == kind_of(wrong.detail)
    return same and not is_broken and (wrong.raises or not verdict.raises)


def kind_of(difference: str) -> str:
    """A difference without the call, the place and the numbers."""
    text = re.sub(r"call \d+: ", "", difference.split("\n")[0])
    path, _, values = text.partition(": ")
    traits = path.rpartition(" ")[2] if " " in path and not path.startswith("raises") else ""
    if path.startswith("raises"):
        return re.sub(r"\d+", "0", text)[:80]
    return re.split(r"[\[{.]", path)[0].split(" ")[0] + (f" {traits}" if traits else "")


def _smaller(text: str) -> Iterator[str]:
    """Texts with some statements less, the many at once first; a compound statement's body in its place."""
    tree = ast.parse(text)
    blocks = [block for block, _ in _blocks(tree)]
    for size in (8, 4, 2, 1):
        for number, block in enumerate(blocks):
            for start in range(0, len(block) if len(block) >= size else 0, size):
                yield _edited(tree, number, start, size, [])
    for number, block in enumerate(blocks):
        for start, statement in enumerate(block):
            body = getattr(statement, "body", None)
            if body and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                yield _edited(tree, number, start, 1, body)


def _edited(tree: ast.Module, number: int, start: int, size: int, instead: list[ast.stmt]) -> str:
    edited = copy.deepcopy(tree)
    block, is_needed = list(_blocks(edited))[number]
    block[start : start + size] = copy.deepcopy(instead) or ([ast.Pass()] if is_needed and len(block) <= size else [])
    return ast.unparse(ast.fix_missing_locations(edited)) + "\n"


def _blocks(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], bool]]:
    """Every list of statements, and whether it must not be empty."""
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt | ast.ExceptHandler):
                yield value, name == "body"


def as_file(text: str) -> str:
    """The program as a file that runs: it judges itself."""
    return text.rstrip("\n") + _FOOT


def main(path: str) -> int:
    """Judge the file of a found program; print what is wrong."""
    text = pathlib.Path(path).read_text().split(_FOOT.strip("\n").split("\n")[0])[0]
    torch.set_num_threads(1)
    verdict = judge(text)
    print(verdict.status, verdict.detail, *verdict.counted, sep="\n  ")
    return int(verdict.status in BAD)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
