"""What the benchmarks of steps found: a file for each number of threads, a model's results together with how they were made.

    load: (file, type of its results) -> {model: Entry}        save: (entries, file)        entry: results -> Entry, made here

A model's results replace its older ones, and are stored as soon as they are there: an interrupted run loses nothing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Generic, TypeVar

import torch

from benchmarks.models import MODELS

DOCS = Path(__file__).parent.parent / "docs"


@dataclasses.dataclass(frozen=True)
class Result:
    """What one contender did on one model: the seconds of a step, their ratio to eager's, the seconds of the first call.

    ``error`` is empty, or says why there are no figures. ``fallbacks`` counts, by reason, what gradc left to eager in a step.
    """

    contender: str
    seconds: float = 0.0
    ratio: float = 0.0
    first_call: float = 0.0
    error: str = ""
    fallbacks: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class BackwardResult(Result):
    """Of forward and backward."""

    peak_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class WholeResult(Result):
    """Of a whole step with its optimizer. ``is_eagers``: whether the parameters were eager's behind some steps, bit for bit."""

    is_eagers: bool = False


R = TypeVar("R", bound=Result)


@dataclasses.dataclass(frozen=True)
class Entry(Generic[R]):
    """A model's results, the first of which is eager's, and how they were made. ``jax``: its version, if it took part."""

    command: str
    torch: str
    minutes: float
    results: list[R]
    machine: str = ""
    jax: str = ""

    def find(self, contender: str) -> R | None:
        return next((result for result in self.results if result.contender == contender), None)


Entries = dict[str, Entry[R]]  # by model


def entry(command: str, seconds: float, results: list[R]) -> Entry[R]:
    """What ``command``, with the arguments of this process, found in so many seconds."""
    words = [command, *(f'"{word}"' if " " in word else word for word in sys.argv[1:])]
    jax = version_of("jax") if any(result.contender.startswith("JAX") for result in results) else ""
    return Entry(" ".join(words), torch.__version__, round(seconds / 60, 2), results, machine(), jax)


def machine() -> str:
    """The processor, and which of its kernels torch chose for it: ``"Intel(R) Xeon(R) Processor, 2 cores, AVX512"``."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "a CPU without a name")
    return f"{name}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"


def version_of(package: str) -> str:
    """That of the package that is installed, or nothing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def load(store: Path, kind: type[R]) -> Entries[R]:
    """What is stored there: nothing, if there is no such file."""
    if not store.exists():
        return {}
    return {
        model: Entry(**{**stored, "results": [kind(**result) for result in stored["results"]]})
        for model, stored in json.loads(store.read_text()).items()
    }


def save(entries: Entries[R], store: Path) -> None:
    """Under another name first, so that an interruption leaves the old file or the new one."""
    store.parent.mkdir(parents=True, exist_ok=True)
    ordered = {model: dataclasses.asdict(entries[model]) for model in MODELS if model in entries}
    unfinished = store.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(ordered, indent=1) + "\n")
    unfinished.replace(store)
