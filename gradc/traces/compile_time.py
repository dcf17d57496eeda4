"""How long compiling took, by phase.

compile_time_of: (Dynamo's compilations, seconds of the first run and of a later one) -> CompileTime
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gradc.torch_private.dynamo import compilations


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


def compiled_since(known: Sequence[Any]) -> list[Any]:
    """What Dynamo compiled since ``compilations()`` was ``known``."""
    return [done for done in compilations() if not any(done is old for old in known)]


def compile_time_of(done: Sequence[Any], first: float, later: float) -> CompileTime:
    """``done``: what Dynamo compiled in the first run."""
    frames = sum(each.entire_frame_compile_time_s or 0.0 for each in done)
    forward = sum(each.backend_compile_time_s or 0.0 for each in done)
    return CompileTime(frames - forward, forward, max(0.0, first - later - frames))
