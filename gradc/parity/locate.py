"""Find where a difference begins: the step in question is run once more in eager and compiled, recorded operation by operation.

locate: (runs, what eager and the compiled step left, the differences) -> Location, or None
"""

from __future__ import annotations

from collections.abc import Sequence

from gradc.bits import same_bits
from gradc.parity.alignment import maker_of, part, redrawn
from gradc.parity.differences import ZEROS, Difference, Kind, Stage, Value
from gradc.parity.location import Location, at_border, drawn_again, located, of_draws
from gradc.parity.observe import is_generator
from gradc.parity.recording import Call, digest
from gradc.parity.runs import Runs, Seen
from gradc.parity.script import ScriptRuns

_GRAD = "grad of "


def locate(runs: Runs | ScriptRuns, expected: Seen, actual: Seen, differences: Sequence[Difference]) -> Location | None:
    """None where the recorded run says nothing: eager is not what it was, or no operation made what differs."""
    number = min(found.step for found in differences)
    first = [found for found in differences if found.step == number and found.name in expected[number - 1]]
    seen, theirs = expected[number - 1], actual[number - 1]
    if not first or not _is_again(recorded := runs.recorded(number, is_eager=True), seen, first):
        return None
    calls = recorded[0]
    ordered, is_drawn = _in_order(first, seen, calls), any(is_generator(found.name) for found in first)
    compiled = runs.recorded(number, is_eager=False)
    if ordered[0].why != ZEROS and _is_again(compiled, theirs, first):
        digests = [digest(seen[found.name].value) for found in ordered]
        if location := _of_operations(calls, compiled[0], digests, is_drawn):
            return location
    made = digest(seen[ordered[0].name].value)
    if is_drawn:
        return of_draws(maker_of(made, calls))
    read = seen.get(ordered[0].name.removeprefix(_GRAD))
    return at_border(ordered[0], calls, made, "" if read is None else digest(read.value))


def _of_operations(eager: Sequence[Call], compiled: Sequence[Call], seen: Sequence[str], is_drawn: bool) -> Location | None:
    parting = part(eager, compiled, seen)
    if (parting is None or parting.is_seen_in_backward) and (again := redrawn(compiled)):
        return drawn_again(*again, eager)
    if parting is None or (parting.compiled is None and parting.reader is None and not is_drawn):
        return None
    return of_draws(parting.eager) if parting.compiled is None and is_drawn else located(parting)


def _is_again(recorded: tuple[list[Call], dict[str, Value]], before: dict[str, Value], names: Sequence[Difference]) -> bool:
    """Whether the recorder changed nothing."""
    return all(same_bits(recorded[1].get(found.name, _NOTHING).value, before[found.name].value) for found in names)


_NOTHING = Value(None, Stage.OUTPUT)


def _in_order(differences: Sequence[Difference], seen: dict[str, Value], calls: Sequence[Call]) -> list[Difference]:
    """What is wrong before what rounds otherwise; results before gradients, in eager's order; generators last."""
    place = {result.digest: number for number, call in reversed([*enumerate(calls)]) for result in call.results}

    def key(found: Difference) -> tuple[bool, bool, Stage, int]:
        value = seen[found.name]
        return is_generator(found.name), found.kind is not Kind.WRONG, value.stage, place.get(digest(value.value), len(calls))

    return sorted(differences, key=key)
