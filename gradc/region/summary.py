"""What a function became when it was compiled, in numbers, for who listens to the journal: ``gradc.explain`` shows them.

graph_of: (name, Hoisted, segments, forward) -> Graph
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradc.analysis.hoist import Hoisted
from gradc.analysis.segments import Segment
from gradc.ir.program import Program
from gradc.journal import Cut, Graph


def graph_of(name: str, hoisted: Hoisted, segments: tuple[Segment, ...], forward: Program) -> Graph:
    tape = hoisted.tape
    slots = [tape.slot_of(primal.fake) for primal in hoisted.primals if primal.fake is not None]
    inputs = {tape.aliases.root_of(slot) for slot in slots if slot is not None}

    def saved_bytes(segments: Iterable[Segment]) -> int:
        """Memory that backward needs and forward made: that of each family once, in the sizes of the call that was captured."""
        saved = [tape.saved[index] for segment in segments for index in segment.saved]
        memory = {tape.aliases.root_of(one.slot): one.fake.untyped_storage() for one in saved}
        return sum(_hint(storage.nbytes()) for root, storage in memory.items() if root not in inputs)

    cuts = tuple(Cut(len(each.nodes), saved_bytes([each]), tape.line_of(each.nodes[0])) for each in segments)
    where = next((call.where for call in forward.instructions if call.where), "")
    return Graph(name, len(forward.instructions), cuts, saved_bytes(segments), where)


def _hint(number: Any) -> int:
    return number if isinstance(number, int) else number.node.hint
