"""All that needs a GPU, in order of importance, in so many seconds: compared with eager bit for bit, and at last timed.

    python -m tests.cuda [--parts devices,semantics] [--seconds 480] [--jobs 14] [--out build/cuda] [--seed 0]
    python -m tests.cuda --write              then docs/cuda.md, too
    python -m tests.cuda --page FOLDER        docs/cuda.md from what an earlier run left there; runs nothing
    python -m tests.cuda --device simulated   without a GPU: all but the kernels

Each verdict is a line of FOLDER/results.jsonl as soon as it is there; what is wrong, one of FOLDER/wrong.txt; the counts so far
are in FOLDER/summary.txt. Ends with 1 if anything is wrong, with 2 if there is no GPU. Nothing is asked of the network.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import sys
import time

import torch

from tests.cuda import page, schedule
from tests.cuda.parts import PARTS, Target
from tests.cuda.verdict import BAD, Status, Verdict, counts, read
from tests.devices import processes, simulated

TOLD_EVERY = 20.0  # seconds


class Results:
    """What was found so far, on the disk and told."""

    def __init__(self, folder: pathlib.Path, about: dict[str, str]) -> None:
        self._folder, self._begun, self._told = folder, time.monotonic(), 0.0
        self.verdicts: list[Verdict] = []
        page.write_about(folder, about)
        for name in ("results.jsonl", "wrong.txt"):
            (folder / name).write_text("")

    def add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        self._append("results.jsonl", verdict.line())
        if verdict.is_bad:
            self._append("wrong.txt", str(verdict))
        if verdict.is_bad or verdict.status is Status.MEASURED:
            print(str(verdict)[:300], flush=True)
        if time.monotonic() - self._told > TOLD_EVERY:
            self.summarize()

    def _append(self, name: str, line: str) -> None:
        with (self._folder / name).open("a") as file:
            file.write(line + "\n")

    def summarize(self, left: list[schedule.Left] | None = None) -> None:
        self._told = time.monotonic()
        lines = [f"{name}: {_in_words(found)}" for name in PARTS if (found := [v for v in self.verdicts if v.part == name])]
        lines += [f"{each.part}: {each.judged} of {each.items} judged, {each.seconds} s" for each in left or ()]
        text = "\n".join((f"after {time.monotonic() - self._begun:.0f} s", *lines))
        (self._folder / "summary.txt").write_text(text + "\n")
        print(text, flush=True)


def _in_words(verdicts: list[Verdict]) -> str:
    return ", ".join(f"{number} {status}" for status, number in counts(verdicts).items())


def main() -> int:
    options = _parse()
    if options.page:
        page.write(pathlib.Path(options.page))
        return 0
    target = Target(options.device, options.seed, options.compiler)
    if target.is_gpu and not torch.cuda.is_available():
        print(f"There is no GPU that torch {torch.__version__} can use. Without one: python -m tests.cuda --device simulated")
        return 2
    if target.device == simulated.NAME:
        processes.in_python("")  # compiles it, once
    folder = pathlib.Path(options.out)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    results = Results(folder, page.about(target))
    left = schedule.run(target, options.parts, options.seconds, options.jobs, folder, results.add)
    results.summarize(left)
    page.write_left(folder, left)
    if options.write:
        page.write(folder)
    return int(any(verdict.status in BAD for verdict in read(folder / "results.jsonl")))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cuda", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parts", type=_parts, default=list(PARTS), metavar="NAME,...", help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=480.0, help="for all; default: %(default)s")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes; default: %(default)s")
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--compiler", default="gradc", help="what is compared with eager (tests/compilers.py)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn; default: %(default)s")
    parser.add_argument("--out", default="build/cuda", metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--write", action="store_true", help="write docs/cuda.md")
    parser.add_argument("--page", default="", metavar="FOLDER", help="write docs/cuda.md from what is there, and run nothing")
    return parser.parse_args()


def _parts(text: str) -> list[str]:
    chosen = [name.strip() for name in text.split(",")]
    if unknown := [name for name in chosen if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"there is no part {unknown[0]!r}. There are: {', '.join(PARTS)}")
    return [name for name in PARTS if name in chosen]


if __name__ == "__main__":
    sys.exit(main())
