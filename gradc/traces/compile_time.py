"""How long compiling took, by phase.

compile_time_of: (Dynamo's compilations, seconds of the first run and of a later one) -> CompileTime
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class CompileTime:
    """Seconds that the first run of a function took beyond a later one.

    Attributes:
        dynamo: Dynamo, which turns Python into graphs and makes their guards.
        forward: gradc, which turns graphs into regions: their forwards, and what is known of their backwards.
        rest: all else that a first run does: the backwards, which are compiled when they first run, imports, caches.
    """

    dynamo: float
    forward: float
    rest: float

    @property
    def whole(self) -> float:
        return self.dynamo + self.forward + self.rest

    def __str__(self) -> str:
        phases = f"Dynamo {self.dynamo:.2g} s, forwards {self.forward:.2g} s, backwards and all else {self.rest:.2g} s"
        return f"compiled in {self.whole:.2g} s: {phases}"


def compile_time_of(compilations: Sequence[Any], first: float, later: float) -> CompileTime:
    """``compilations``: what ``torch_private.dynamo.compilations`` has of the first run."""
    frames = sum(done.entire_frame_compile_time_s or 0.0 for done in compilations)
    forward = sum(done.backend_compile_time_s or 0.0 for done in compilations)
    return CompileTime(frames - forward, forward, max(0.0, first - later - frames))
