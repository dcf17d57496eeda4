"""Find each call of the graphs among eager's: gradc makes eager's calls, in eager's order, but for some that it drops or adds.

    align:  (calls of the graphs, eager's calls) -> {index: index of eager's}
    places: such a dictionary -> for each of eager's calls, where it stands among the calls of the graphs

Calls are paired among those that look alike: the k-th here is the k-th there, where there are as many. Looked at is first all
that is known, then less and less. What is left over has no partner: rather none than a wrong one.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from gradc.reporting.calls import Call

Key = Callable[[Call[Any], str], Hashable]  # of a call and its line


def _all(call: Call[Any], line: str) -> Hashable:
    return call.op, call.phase, line, call.made


def _without_line(call: Call[Any], line: str) -> Hashable:
    return call.op, call.phase, call.made


def _without_shapes(call: Call[Any], line: str) -> Hashable:
    return call.op, call.phase, line


_KEYS: tuple[Key, ...] = (_all, _without_line, _without_shapes)


def align(
    calls: Sequence[Call[Any]], eager: Sequence[Call[Any]], lines: Sequence[str], eager_lines: Sequence[str]
) -> dict[int, int]:
    """``lines``: of each call, the place in the user's file."""
    found: dict[int, int] = {}
    for key in _KEYS:
        mine = _grouped([key(call, line) for call, line in zip(calls, lines, strict=True)], set(found))
        theirs = _grouped([key(call, line) for call, line in zip(eager, eager_lines, strict=True)], set(found.values()))
        for each, indices in mine.items():
            if len(indices) == len(theirs.get(each, ())):
                found.update(zip(indices, theirs[each]))
    return found


def places(aligned: Mapping[int, int], num_calls: int, num_eager: int) -> list[float]:
    """Those that have no partner are spread between their neighbours. Never falls: what runs later stands later."""
    found: list[float] = []
    last, place = -1, -1.0
    partners = sorted((theirs, float(mine)) for mine, theirs in aligned.items())
    for theirs, mine in (*partners, (num_eager, float(num_calls))):
        mine = max(mine, place)
        found += [place + (mine - place) * step / (theirs - last) for step in range(1, theirs - last + 1)]
        last, place = theirs, mine
    return found[:num_eager]


def _grouped(keys: Sequence[Hashable], taken: set[int]) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = collections.defaultdict(list)
    for index, key in enumerate(keys):
        if index not in taken:
            groups[key].append(index)
    return groups
