"""What a function became when it was compiled, in numbers, for who listens to the journal: ``gradc.explain`` shows them.

graph_of: (name, Hoisted, segments, forward) -> Graph
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradc.analysis.hoist import Hoisted
from gradc.analysis.segments import Segment
from gradc.ir.program import Program
from gradc.ir.values import Instruction
from gradc.journal import Cut, Graph, Kept
from gradc.tape.tape import Saved, Tape


def graph_of(name: str, hoisted: Hoisted, segments: tuple[Segment, ...], forward: Program) -> Graph:
    kept = _kept(hoisted, segments)
    cuts = tuple(Cut(len(each.nodes), _sum(_kept(hoisted, [each])), hoisted.tape.line_of(each.nodes[0])) for each in segments)
    where = next((call.where for call in forward.instructions if call.where), "")
    return Graph(name, len(forward.instructions), cuts, _sum(kept), where, kept)


def _sum(kept: Iterable[Kept]) -> int:
    return sum(each.num_bytes for each in kept)


def _kept(hoisted: Hoisted, segments: Iterable[Segment]) -> tuple[Kept, ...]:
    """Memory that backward needs and forward made: that of each family of tensors once."""
    tape = hoisted.tape
    slots = [tape.slot_of(primal.fake) for primal in hoisted.primals if primal.fake is not None]
    inputs = {tape.aliases.root_of(slot) for slot in slots if slot is not None}
    makers = {out: call for call in hoisted.program.instructions for out in call.outs if out is not None}
    families: dict[int, tuple[Saved, list[str]]] = {}
    for segment in segments:
        for node, saves in segment.saves.items():
            for saved in (tape.saved[index] for index in saves.indices):
                families.setdefault(tape.aliases.root_of(saved.slot), (saved, []))[1].append(node.name())
    made = [(root, *family) for root, family in sorted(families.items()) if root not in inputs]
    found = [_of(tape, saved, makers.get(root), names) for root, saved, names in made]
    return tuple(sorted(found, key=lambda each: -each.num_bytes))


def _of(tape: Tape, saved: Saved, maker: Instruction | None, needed_by: list[str]) -> Kept:
    shape = ", ".join(str(_hint(size)) for size in saved.fake.shape)
    return Kept(
        _hint(saved.fake.untyped_storage().nbytes()),
        f"{str(saved.fake.dtype).removeprefix('torch.')}[{shape}]",
        "" if maker is None else str(maker.op),
        "" if maker is None else maker.where,
        tuple(dict.fromkeys(needed_by)),
    )


def _hint(number: Any) -> int:
    return number if isinstance(number, int) else number.node.hint
