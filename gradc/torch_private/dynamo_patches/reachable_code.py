"""What of a function's bytecode may run from a place on.

all_behind: (tx, instruction) -> the instructions that may run from there on, or handle its errors, in the function's order;
            ``end_withs=False``: the ``__exit__`` of no ``with`` ends an error
"""

from __future__ import annotations

from typing import Any

RETURNS = ("RETURN_VALUE", "RETURN_CONST")
_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")  # in any case
_ENDS = (*RETURNS, *_JUMPS, "RAISE_VARARGS", "RERAISE")


def all_behind(translator: Any, first: Any, *, end_withs: bool = True) -> list[Any]:
    """See the module's docstring."""
    instructions, place_of = translator.instructions, translator.indexof
    places, waiting = set[int](), [place_of[first]]
    while waiting:
        place = waiting.pop()
        if place in places:
            continue
        places.add(place)
        inst = instructions[place]
        handler = inst.exn_tab_entry and inst.exn_tab_entry.target
        target = inst.target if end_withs or not _asks_exit(instructions, place) else None
        waiting += [place_of[each] for each in (target, handler) if each is not None]
        if inst.opname not in _ENDS:
            waiting.append(place + 1)
    return [instructions[place] for place in sorted(places)]


def _asks_exit(instructions: list[Any], place: int) -> bool:
    """Whether it jumps where an ``__exit__`` has said that the error has ended."""
    return any(inst.opname == "WITH_EXCEPT_START" for inst in instructions[max(place - 2, 0) : place])
