"""Where a difference begins, and what its likely cause is, in words.

located:    a Parting -> Location                     of the first operation that differs
at_border:  (difference, eager's calls) -> Location    where single operations of the compiler cannot be seen
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import torch

from gradc.parity.alignment import Parting, maker_of, reader_of
from gradc.parity.differences import ZEROS, Difference, Kind, difference
from gradc.parity.recording import Call

_LOW = (torch.bfloat16, torch.float16)


class Sign(enum.Enum):
    """What is known of the operation."""

    DIFFERS = "The first operation that differs is {}"
    MAKES = "The first value that differs is made, in eager, by {}"
    READS = "What gets the gradient is read by {}"


@dataclasses.dataclass(frozen=True)
class Location:
    """Where a compiled step begins not to be eager.

    Attributes:
        sign: what is known of the operation. Where single operations of a compiler cannot be seen, it is eager's that makes
            the first value that differs.
        op: "aten.mm"; "" if none is known.
        phase: "forward" or "backward".
        where: the user's line; in backward, that of the forward operation whose gradient it is.
        eager, compiled: what it read, in words.
        cause: the likely cause, a sentence.
    """

    sign: Sign
    op: str
    phase: str
    where: str
    eager: str
    compiled: str
    cause: str

    def __str__(self) -> str:
        """The cause, the line, then what is known of the operation."""
        lines = [f"Likely cause: {self.cause}."]
        lines += [f"  at {self.where}"] if self.where else []
        lines += [f"  {self.sign.value.format(self._operation)}{self._read()}."] if self.op else []
        return "\n".join(lines)

    @property
    def _operation(self) -> str:
        return f"{self.phase}'s {self.op}"

    def _read(self) -> str:
        is_other = self.compiled and self.compiled != self.eager
        return f", which reads {self.eager}; compiled {self.compiled}" if is_other else ""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"sign": self.sign.name.lower()}


def located(parting: Parting) -> Location:
    return _at(Sign.DIFFERS, parting.eager, _cause(parting), parting.compiled)


def drawn_again(before: Call, again: Call, calls: Sequence[Call]) -> Location:
    """Of what the compiled step draws twice. ``calls``: eager's, which know the user's line."""
    made = [maker_of(result.digest, calls) for result in before.results]
    where = next((call.where for call in made if call is not None), "")
    name = before.op.split(".")[-1]
    cause = (
        f"backward does {name} again instead of keeping what forward made of it, and draws another mask, or noise, than forward"
    )
    operands = ", ".join(map(str, again.operands))
    return Location(Sign.DIFFERS, again.op, again.phase, where, operands, operands, cause)


def at_border(found: Difference, calls: Sequence[Call], made: str, read: str) -> Location:
    """``made``, ``read``: digests of eager's value that differs, and of the parameter whose gradient it is, or ""."""
    if found.why == ZEROS:
        cause = f"{ZEROS}: what was computed with it is an output that nothing uses, so eager's backward does not come there"
        return _at(Sign.READS, reader_of(read, calls) if read else None, cause)
    cause = "the kernels are fused, or other ones than eager's, and round otherwise"
    return _at(Sign.MAKES, maker_of(made, calls), cause if found.kind is Kind.ROUNDED else found.why or str(found.kind))


def of_draws(call: Call | None) -> Location:
    """Where the random generators differ. ``call``: eager's that makes the first value that does, and has no counterpart."""
    cause = "other random numbers are drawn than in eager (masks of dropout, noise); Inductor draws eager's with"
    return _at(Sign.MAKES, call, f"{cause} torch._inductor.config.fallback_random = True")


def _at(sign: Sign, call: Call | None, cause: str, compiled: Call | None = None) -> Location:
    if call is None:
        return Location(sign, "", "", "", "", "", cause)
    theirs = "" if compiled is None else ", ".join(map(str, compiled.operands))
    return Location(sign, call.op, call.phase, call.where, ", ".join(map(str, call.operands)), theirs, cause)


def _cause(parting: Parting) -> str:
    mine, other = parting.eager, parting.compiled
    name = mine.op.split(".")[-1]
    if parting.is_of_dtypes and other is not None:
        return _of_dtypes(mine, other, name)
    if mine.is_drawn and parting.reader is not None and other is not None and mine.results == other.results:
        reader = f"{parting.reader[0].phase}'s {parting.reader[0].op}"
        return f"the mask that {reader} reads is not the one that {name} made in {mine.phase}: it was drawn again"
    if mine.is_drawn:
        return f"other random numbers were drawn: {name}'s mask or noise differs"
    if other is None:
        return f"the compiler runs other operations in the place of {name}"
    return _of_values(mine, other, name)


def _of_dtypes(mine: Call, other: Call, name: str) -> str:
    theirs = next((b.dtype for a, b in zip(mine.operands, other.operands) if a.dtype != b.dtype), other.operands[0].dtype)
    text = f"{mine.phase}'s {name} ran in {str(theirs).removeprefix('torch.')}"
    if theirs in _LOW and not mine.has_autocast:
        return f"{text}: autocast was on where {_the(mine)} was compiled, off where eager ran it"
    if theirs not in _LOW and mine.has_autocast:
        return f"{text}: autocast was off where {_the(mine)} was compiled, on where eager ran it"
    return text


def _the(call: Call) -> str:
    return "the backward" if call.is_backward else "it"


def _of_values(mine: Call, other: Call, name: str) -> str:
    kinds = [difference(name, a, b) for a, b in zip(mine.values, other.values)]
    found = [kind for kind in kinds if kind is not None]
    if not found:
        return f"{name} made what it makes in eager, but other numbers are read in its place afterwards"
    worst = max(found, key=lambda each: each.kind)
    if worst.kind is Kind.WRONG:
        return f"{name} made other values of the same operands: {worst.why}"
    return (
        f"another kernel of {name} rounds otherwise, by up to {worst.ulps.largest if worst.ulps else '?'} ulps, or a fused one"
    )
