"""What ``gradc.check`` found, as a value, as text, and as a dictionary for JSON.

Report: str, to_dict, raise_if_different
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gradc.errors import CheckError
from gradc.journal import Fallback, Uncompiled, reason
from gradc.parity.differences import Difference, Kind
from gradc.parity.location import Location
from gradc.text_table import table

_MOST_HISTOGRAMS = 3
_MOST_ROWS = 40


@dataclasses.dataclass(frozen=True)
class Report:
    """What ``gradc.check`` found. ``str`` of it is a table, and what it has to say against itself.

    Attributes:
        num_compared: how many values were compared, in all steps.
        differences: those that are not eager's, bit for bit.
        irreproducible: those that eager itself did not get twice; they are no differences.
        num_compiled: how many regions and captured backward passes the compiled run had; None if nobody can tell.
        left_out: what of it ran eagerly, or was in no graph. Of gradc only.
        against: the name of the compiler.
        num_steps: how many steps were run.
        location: where the first difference begins, and its likely cause; None if that was not found.
    """

    num_compared: int
    differences: tuple[Difference, ...]
    irreproducible: tuple[Difference, ...] = ()
    num_compiled: int | None = 1
    left_out: tuple[Fallback | Uncompiled, ...] = ()
    against: str = "gradc"
    num_steps: int = 1
    location: Location | None = None

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
        parts = [self._head(), *self._body(), *self._reservations(), *map(_left_out, dict.fromkeys(self.left_out))]
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Texts, numbers, lists and dictionaries only, as for JSON."""
        return {
            "against": self.against,
            "ok": self.ok,
            "is_conclusive": self.is_conclusive,
            "kind": None if self.kind is None else str(self.kind),
            "num_steps": self.num_steps,
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
            CheckError: with the table, if one is not.
        """
        if not self.ok:
            raise CheckError(str(self))

    def _head(self) -> str:
        steps = f" in {self.num_steps} steps" if self.num_steps > 1 else ""
        head = f"{self.num_compared} values compared{steps}: "
        if self.ok:
            return head + "all are eager's, bit for bit."
        return f"{head}1 is not eager's." if len(self.differences) == 1 else f"{head}{len(self.differences)} are not eager's."

    def _body(self) -> list[str]:
        if self.ok:
            return []
        first = self.first_differences
        where = [] if self.location is None else [str(self.location)]
        lines = [self._verdict(), _table(first, ("eager", "compiled")), *where, *_histograms(first)]
        if later := len(self.differences) - len(first):
            lines.append(f"Of the steps behind step {first[0].step}, which go on from there, {later} more values differ.")
        return lines

    def _verdict(self) -> str:
        step = f"From step {self.first_differences[0].step} on, against" if self.num_steps > 1 else "Against"
        counts = [(kind, sum(found.kind is kind for found in self.first_differences)) for kind in sorted(Kind, reverse=True)]
        return f"{step} {self.against}: " + ", ".join(f"{kind}: {count}" for kind, count in counts if count) + "."

    def _reservations(self) -> list[str]:
        lines = []
        if self.irreproducible:
            lines += [
                f"The step itself is not reproducible: {len(self.irreproducible)} values are other ones when eager runs again.",
                _table(self.irreproducible, ("eager", "eager again")),
            ]
        if self.num_compiled == 0:
            lines.append(f"Nothing was compiled: this says nothing about {self.against}.")
        return lines


def _table(differences: Sequence[Difference], sides: tuple[str, str]) -> str:
    """In the order in which they were met; of many, the worst."""
    chosen = {id(found) for found in sorted(differences, key=lambda found: -found.kind)[:_MOST_ROWS]}
    rows = [
        [found.name, found.eager, found.compiled, "-" if found.largest is None else f"{found.largest:.1e}", _judged(found)]
        for found in differences
        if id(found) in chosen
    ]
    more = f"\n... and {len(differences) - len(rows)} more" if len(differences) > len(rows) else ""
    return table(["value", *sides, "largest difference", "kind"], rows) + more


def _judged(found: Difference) -> str:
    return f"{found.kind}: {found.why}" if found.why else str(found.kind)


def _histograms(differences: Sequence[Difference]) -> list[str]:
    """Of the values that round otherwise, the first few."""
    rounded = [found for found in differences if found.ulps is not None]
    return [f"How far apart the elements of {found.name} are:\n{found.ulps}" for found in rounded[:_MOST_HISTOGRAMS]]


def _left_out(found: Fallback | Uncompiled) -> str:
    text = reason(found.kind, found.detail)
    how = "graph break" if isinstance(found, Uncompiled) and found.is_break else "ran eagerly"
    return f"{how}: {text}" + (f"\n  at {found.where}" if found.where else "")
