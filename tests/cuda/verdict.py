"""What became of one thing that was looked at on a device: a line of results.jsonl.

    Verdict.line() -> text        read: file -> list of Verdict
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import pathlib
from collections.abc import Iterable
from typing import Any


class Status(enum.StrEnum):
    """How it compares with eager."""

    AS_EAGER = "as eager"
    EAGERLY = "eagerly, counted"  # eager's bits, and a part of it ran eagerly
    OTHER = "no verdict"  # eager raises too, does not repeat itself, or has no such op there
    MEASURED = "measured"
    WRONG = "wrong"  # other bits, or an error that eager does not raise
    HANGS = "hangs"
    CRASHES = "crashes"  # the process


BAD = (Status.WRONG, Status.HANGS, Status.CRASHES)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """``item``: its name within ``part``. ``detail``: the first difference, or reasons. ``data``: figures, of a benchmark."""

    part: str
    item: str
    status: Status
    detail: str = ""
    seconds: float = 0.0
    data: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        return self.status in BAD

    def line(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def __str__(self) -> str:
        return f"{self.part}: {self.item}: {self.status}" + (f": {self.detail}" if self.detail else "")


def of_line(line: str) -> Verdict:
    fields = json.loads(line)
    return Verdict(**{**fields, "status": Status(fields["status"])})


def read(file: pathlib.Path) -> list[Verdict]:
    """The verdicts in ``file``; other lines are passed over."""
    return [of_line(line) for line in file.read_text().splitlines() if line.startswith('{"part"')]


def counts(verdicts: Iterable[Verdict]) -> dict[Status, int]:
    """How many there are of each status, in the order of ``Status``; of those that there are."""
    found = collections.Counter(verdict.status for verdict in verdicts)
    return {status: found[status] for status in Status if found[status]}
