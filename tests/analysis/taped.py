"""A small function, recorded and analysed, for the tests of each analysis by itself.

    taped: (function, *inputs) -> Analysed          what build_region finds out about a function before it lowers anything
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from gradc.analysis.facts import Facts, analyse
from gradc.analysis.hoist import Hoisted, hoist
from gradc.analysis.order import LiveNode, live_order
from gradc.analysis.outputs import Outputs, analyse_outputs
from gradc.analysis.segments import Segment, cut
from gradc.tape.record import TapeRecorder, record
from gradc.tape.tape import Node, Tape
from gradc.torch_private.fakes import FakeTensorMode


@dataclasses.dataclass(frozen=True)
class Analysed:
    """Each result of the analyses, for one tape."""

    tape: Tape
    facts: Facts
    hoisted: Hoisted
    outputs: Outputs

    def segments(self, **options: Any) -> tuple[Segment, ...]:
        return cut(self.hoisted, self.outputs.edges, self.outputs.made_between, **options)

    def order(self) -> tuple[LiveNode, ...]:
        return live_order(self.hoisted, self.segments(), self.outputs)


def taped(function: Callable[..., Any], *inputs: Any, autocast: torch.dtype | None = None) -> Analysed:
    def listed(recorder: TapeRecorder, *fakes: Any) -> list[Any]:
        recorder.enter_line("the user's line")
        result = function(*fakes)
        return list(result) if isinstance(result, tuple) else [result]

    names = [f"input_{number}" for number in range(len(inputs))]
    under = contextlib.nullcontext() if autocast is None else torch.autocast("cpu", autocast)
    with torch.enable_grad(), under:
        tape = record(listed, inputs, names, FakeTensorMode(), "taped")
    facts = analyse(tape)
    hoisted = hoist(tape, facts)
    return Analysed(tape, facts, hoisted, analyse_outputs(hoisted, facts))


def names_of(nodes: tuple[Node, ...]) -> list[str]:
    """``["Tanh", "Mm"]`` for TanhBackward0 and MmBackward0."""
    return [node.name().partition("Backward")[0] for node in nodes]
