"""Where do two recordings of a step part? The first operation of eager's whose value the compiled step does not go on with.

    part: (eager's calls, the compiled step's, what was observed at the end) -> Parting, or None

Operations are paired by name, phase and shapes, in order; what a compiler adds or leaves out in between does not matter. They
part at an operation that reads something in another dtype; at one that read the same and made something else; and at the one
whose result its reader does not get in the compiled step, but numbers that eager never sees. Views are followed to what they
are views of.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Sequence

from gradc.parity.recording import Call, Operand


@dataclasses.dataclass(frozen=True)
class Parting:
    """
    Attributes:
        eager: eager's operation.
        compiled: the one that is paired with it, if there is one.
        reader: eager's operation that read what ``eager`` made, where that is the first sign; with its pair.
    """

    eager: Call
    compiled: Call | None
    reader: tuple[Call, Call] | None = None

    @property
    def is_seen_in_backward(self) -> bool:
        return (self.reader or (self.eager,))[0].is_backward

    @property
    def is_of_dtypes(self) -> bool:
        return self.compiled is not None and _has_other_dtypes(self.eager, self.compiled)


def part(eager: Sequence[Call], compiled: Sequence[Call], seen: Iterable[str]) -> Parting | None:
    """``seen``: digests of what was observed of eager and differs, in order."""
    partner = _pairs(eager, compiled)
    known = {each.digest for call in eager for each in (*call.operands, *call.results)}
    makers = _Makers(partner)
    for mine in eager:
        other = partner.get(id(mine))
        if other is not None and (parting := _of_pair(mine, other, known, makers)):
            return parting
        makers.add(mine)
    made = (makers.of(digest) for digest in seen)
    return next((Parting(maker, partner.get(id(maker))) for maker in made if maker), None)


def _of_pair(mine: Call, other: Call, known: set[str], makers: _Makers) -> Parting | None:
    if _has_other_dtypes(mine, other):
        return Parting(mine, other)
    if (missing := _missing(mine, other, known)) and (maker := makers.of(missing)):
        return Parting(maker, makers.partner.get(id(maker)), (mine, other))
    if _reads_the_same(mine, other) and _digests(mine.results) != _digests(other.results):
        return Parting(mine, other)
    return None


def _missing(mine: Call, other: Call, known: set[str]) -> str:
    """What eager reads, and the compiled step something in its place that eager never sees; "" if there is nothing."""
    theirs = _digests(other.operands)
    if not any(digest and digest not in known for digest in theirs):
        return ""
    at_place = (a for a, b in zip(_digests(mine.operands), theirs) if b and b not in known and a not in theirs)
    return next((digest for digest in (*at_place, *_digests(mine.operands)) if digest and digest not in theirs), "")


class _Makers:
    """Who made these numbers last, of eager's calls so far."""

    def __init__(self, partner: dict[int, Call]) -> None:
        self.partner = partner
        self._calls: dict[str, Call] = {}

    def add(self, call: Call) -> None:
        for result in call.results:
            if result.digest and not (call.is_view and result.digest in self._calls):
                self._calls[result.digest] = call

    def of(self, digest: str) -> Call | None:
        """Not a view, nor a copy that the compiled step does without. None for what the step was given."""
        met = set[str]()
        maker = self._calls.get(digest)
        while maker is not None and (maker.is_view or (id(maker) not in self.partner and digest in _digests(maker.operands))):
            met.add(digest)
            digest = next((each for each in _digests(maker.operands) if each), "")
            maker = None if digest in met else self._calls.get(digest)
        return maker


def maker_of(digest: str, calls: Sequence[Call]) -> Call | None:
    """The call that made these numbers first, views left out."""
    makers = _Makers({id(call): call for call in calls})
    for call in reversed(calls):
        makers.add(call)
    return makers.of(digest)


def redrawn(calls: Sequence[Call]) -> tuple[Call, Call] | None:
    """A call of forward that takes random numbers, and the same one in backward, to which other numbers came."""
    drawn: dict[tuple[object, ...], list[Call]] = {}
    for call in calls:
        if call.is_drawn and call.operands:
            drawn.setdefault((call.op, call.settings, *_digests(call.operands)), []).append(call)
    for same in drawn.values():
        before, again = ([call for call in same if call.is_backward is is_backward] for is_backward in (False, True))
        if (
            before
            and again
            and not {*_digests(again[0].results)} & {digest for call in before for digest in _digests(call.results)}
        ):
            return before[0], again[0]
    return None


def reader_of(digest: str, calls: Sequence[Call]) -> Call | None:
    """The first call, but for views, that read these numbers, or a view of them."""
    views = {digest}
    for call in calls:
        if views & {operand.digest for operand in call.operands}:
            if not call.is_view:
                return call
            views |= {result.digest for result in call.results}
    return None


def _pairs(eager: Sequence[Call], compiled: Sequence[Call]) -> dict[int, Call]:
    """By the id of eager's call, the compiled step's."""
    mine, theirs = ([call for call in calls if not call.is_view] for calls in (eager, compiled))
    matcher = difflib.SequenceMatcher(None, [*map(_key, mine)], [*map(_key, theirs)], autojunk=False)
    return {id(mine[i + k]): theirs[j + k] for i, j, size in matcher.get_matching_blocks() for k in range(size)}


def _key(call: Call) -> tuple[object, ...]:
    return call.op, call.is_backward, tuple(result.shape for result in call.results)


def _has_other_dtypes(mine: Call, other: Call) -> bool:
    pairs = zip(mine.operands, other.operands)
    is_alike = len(mine.operands) == len(other.operands)
    return is_alike and any(
        a.dtype != b.dtype and a.dtype.is_floating_point and b.dtype.is_floating_point and a.shape == b.shape for a, b in pairs
    )


def _reads_the_same(mine: Call, other: Call) -> bool:
    return mine.settings == other.settings and _digests(mine.operands) == _digests(other.operands)


def _digests(operands: Iterable[Operand]) -> list[str]:
    return [operand.digest for operand in operands]
