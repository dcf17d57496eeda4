"""What ``gradc.check`` found, as a value, as text, and as a dictionary for JSON.

Report: str, in_full, to_dict, raise_if_different
"""

from __future__ import annotations

import dataclasses
import html
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from gradc.errors import CheckError
from gradc.journal import Fallback, Uncompiled, reason
from gradc.parity.differences import Difference, Kind
from gradc.parity.location import Location
from gradc.text_table import html_table, table

_MOST_NAMED, _MOST_ROWS, _MOST_HISTOGRAMS = 3, 40, 3
_WIDTH = 100  # of tables
_COLUMNS = ("value", "eager", "compiled", "off by", "kind")


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """What ``gradc.check`` found. ``str`` of it says the cause first; ``in_full()`` lists all that differs.

    Attributes:
        num_compared: how many values were compared, in all steps.
        differences: those that are not eager's, bit for bit.
        irreproducible: those that eager itself did not get twice; they are no differences.
        num_compiled: how many regions and captured backward passes the compiled run had; None if nobody can tell.
        left_out: what of it ran eagerly, or was in no graph. Of gradc only.
        against: the name of the compiler.
        num_steps: how many steps were run.
        location: where the first difference begins, and its likely cause; None if that was not found.
        num_runs: how often all steps ran: in eager, compiled, and to find where a difference begins.
        num_nan: how many of the values hold a NaN in eager; that a compiler repeats NaNs says little of it.
        notes: what was set so that the comparison says something.
    """

    num_compared: int
    differences: tuple[Difference, ...]
    irreproducible: tuple[Difference, ...] = ()
    num_compiled: int | None = 1
    left_out: tuple[Fallback | Uncompiled, ...] = ()
    against: str = "gradc"
    num_steps: int = 1
    location: Location | None = None
    num_runs: int = 3
    num_nan: int = 0
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if nothing differs. Whether that says anything, ``is_conclusive`` knows."""
        return not self.differences

    @property
    def is_conclusive(self) -> bool:
        """False where nothing was compiled, or eager is not reproducible, and no difference found: that proves nothing."""
        return bool(self.differences) or (self.num_compiled != 0 and not self.irreproducible)

    @property
    def kind(self) -> Kind | None:
        """The worst difference of the first step that has any: rounded otherwise, or wrong? None if nothing differs."""
        return max((found.kind for found in self.first_differences), default=None)

    @property
    def first_differences(self) -> tuple[Difference, ...]:
        """Those of the first step that has any: what follows is computed of them."""
        first = min((found.step for found in self.differences), default=0)
        return tuple(found for found in self.differences if found.step == first)

    def __str__(self) -> str:
        """The likely cause and its line; how many values differ in what way; the first of them. ``in_full`` lists all."""
        return "\n".join([*self._cause(), self._head(), *self._first_few(), *self._rest()])

    def __repr__(self) -> str:
        return f"<Report: {self._head()}>"

    def _repr_html_(self) -> str:
        """For a notebook: the text, and what differs in the first step as a table."""
        text = f'<pre style="white-space: pre-wrap">{html.escape(str(self))}</pre>'
        rows = [[each.name, each.eager, each.compiled, _off_by(each), _judged(each)] for each in self.first_differences]
        return text + (html_table(_COLUMNS, rows[:_MOST_ROWS]) if rows else "")

    def in_full(self) -> str:
        """The same, with a table of what differs, no wider than 100 columns, and how far apart the elements are."""
        first = self.first_differences
        tables = [_table(first, ("eager", "compiled")), *_histograms(first)] if first else []
        if self.irreproducible:
            tables += ["When eager runs again:", _table(self.irreproducible, ("eager", "eager again"))]
        return "\n".join([*self._cause(), self._head(), *tables, *self._rest()])

    def to_dict(self) -> dict[str, Any]:
        """Texts, numbers, lists and dictionaries only, as for JSON."""
        return {
            "against": self.against,
            "ok": self.ok,
            "is_conclusive": self.is_conclusive,
            "kind": None if self.kind is None else str(self.kind),
            "num_steps": self.num_steps,
            "num_runs": self.num_runs,
            "num_nan": self.num_nan,
            "notes": [*self.notes],
            "num_compared": self.num_compared,
            "num_compiled": self.num_compiled,
            "location": None if self.location is None else self.location.to_dict(),
            "differences": [found.to_dict() for found in self.differences],
            "irreproducible": [found.to_dict() for found in self.irreproducible],
            "left_out": [
                {"kind": found.kind, "detail": found.detail, "where": found.where} for found in dict.fromkeys(self.left_out)
            ],
        }

    def raise_if_different(self) -> None:
        """Do nothing if every value is eager's.

        Raises:
            CheckError: with the whole report, if one is not.
        """
        if not self.ok:
            raise CheckError(self.in_full())

    def _cause(self) -> list[str]:
        return [] if self.location is None else [str(self.location)]

    def _head(self) -> str:
        steps, runs = _number(self.num_steps, "step"), _number(self.num_runs, "run")
        against = "" if self.against == "gradc" else f"Against {self.against}: "
        nan = f" {self.num_nan} of these hold NaNs in eager, too." if self.num_nan else ""
        return f"{against}{self.num_compared} values compared in {steps} ({runs}): {self._verdict()}.{nan}"

    def _verdict(self) -> str:
        if self.ok:
            return "all equal eager, bit for bit"
        first, later = self.first_differences, len(self.differences) - len(self.first_differences)
        counts = [(kind, sum(found.kind is kind for found in first)) for kind in sorted(Kind, reverse=True)]
        where = f"in step {first[0].step}, " if self.num_steps > 1 else ""
        follows = f"; {later} more in later steps follow from these" if later else ""
        return where + ", ".join(_counted(count, kind) for kind, count in counts if count) + follows

    def _first_few(self) -> Iterator[str]:
        worst = sorted(self.first_differences, key=lambda found: -found.kind)
        for found in worst[:_MOST_NAMED]:
            yield f"  {found.kind}: {found.name}" + (f": {found.why}" if found.why else "")
        if len(worst) > _MOST_NAMED:
            yield f"  and {len(worst) - _MOST_NAMED} more: gradc check --table, or in_full() in Python, lists them"

    def _rest(self) -> Iterator[str]:
        """What else is to be known of the check itself."""
        yield from self.notes
        if self.irreproducible:
            names = ", ".join(found.name for found in self.irreproducible[:_MOST_NAMED])
            number = _number(len(self.irreproducible), "value")
            yield f"The step itself is not reproducible in eager, which gives {number} otherwise when it runs again:"
            yield f"  {names}{', ...' if len(self.irreproducible) > _MOST_NAMED else ''}"
        if self.num_compiled == 0:
            yield f"Nothing was compiled: this says nothing about {self.against}."
        yield from map(_left_out, dict.fromkeys(self.left_out))


def _counted(count: int, kind: Kind) -> str:
    return f"{count} {str(kind).replace('rounds', 'rounds' if count == 1 else 'round')}"


def _number(number: int, name: str) -> str:
    return f"1 {name}" if number == 1 else f"{number} {name}s"


def _table(differences: Sequence[Difference], sides: tuple[str, str]) -> str:
    """In the order in which they were met; of many, the worst. Why a value is wrong stands below its row."""
    chosen = {id(found) for found in sorted(differences, key=lambda found: -found.kind)[:_MOST_ROWS]}
    shown = [found for found in differences if id(found) in chosen]
    rows = [
        [_cut(found.name, 30), _cut(found.eager, 18), _cut(found.compiled, 18), _off_by(found), str(found.kind)]
        for found in shown
    ]
    head, rule, *lines = table(["value", *sides, "off by", "kind"], rows).splitlines()
    reasons = [textwrap.indent(textwrap.fill(found.why, _WIDTH - 2), "  ") for found in shown]
    below = (text for line, why in zip(lines, reasons, strict=True) for text in (line, why) if text)
    more = [f"... and {len(differences) - len(rows)} more"] if len(differences) > len(rows) else []
    return "\n".join([head, rule, *below, *more])


def _cut(text: str, most: int) -> str:
    """The end is kept: names of parameters differ there."""
    return text if len(text) <= most else f"...{text[3 - most :]}"


def _judged(found: Difference) -> str:
    return f"{found.kind}: {found.why}" if found.why else str(found.kind)


def _off_by(found: Difference) -> str:
    return "-" if found.largest is None else f"{found.largest:.1e}"


def _histograms(differences: Sequence[Difference]) -> list[str]:
    """Of the values that round otherwise, the first few."""
    rounded = [found for found in differences if found.ulps is not None]
    return [f"How far apart the elements of {found.name} are:\n{found.ulps}" for found in rounded[:_MOST_HISTOGRAMS]]


def _left_out(found: Fallback | Uncompiled) -> str:
    text = reason(found.kind, found.detail)
    how = "graph break" if isinstance(found, Uncompiled) and found.is_break else "ran eagerly"
    return f"{how}: {text}" + (f"\n  at {found.where}" if found.where else "")
