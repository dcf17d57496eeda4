"""One call of a segment's backward: what a live autograd node hands over when the engine runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from gradc.analysis.segments import Segment
from gradc.ir.sizes import Sizes


@dataclasses.dataclass(frozen=True)
class BackwardCall:
    """What the gradients along a segment's exits are made of.

    Attributes:
        segment: whose backward it is.
        sizes: the values of the region's symbols.
        saved: the unpacked tensors of ``segment.saved``; None for a spoilt one.
        tangents: the gradient of each entry, or None where none came; and beyond the entries, under create_graph, what the
            targets have got so far. See ``Segment.inlets``.
        needed: for each exit, whether its gradient is wanted.
        is_repacked: whether saved-tensors hooks made ``saved``.
        stealable: positions of the tangents, laid out otherwise than a fresh tensor, that the engine would add to in place.
        let_go: gets the positions of what nodes that had run owned, when another raises: without retain_graph it is freed.
    """

    segment: Segment
    sizes: Sizes
    saved: Sequence[torch.Tensor]
    tangents: Sequence[torch.Tensor | None]
    needed: Sequence[bool]
    is_repacked: bool = False
    stealable: tuple[int, ...] = ()
    let_go: list[int] = dataclasses.field(default_factory=list)

    @property
    def defined(self) -> list[torch.Tensor]:
        """The tangents that came."""
        return [tangent for tangent in self.tangents if tangent is not None]
