"""What the user chose for a region when it was compiled. It holds for the region's forward, backward and derivatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from gradc.ambient import AutocastState
from gradc.ir.program import Program

Lower = Callable[[Program], Callable[[list[Any]], list[Any]]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the user chose for a region when it was compiled.

    ``backward_autocast`` is the autocast that backward runs under, or None for whatever is ambient then. Under ``fullgraph``
    a backward that would run eagerly raises.
    """

    lower: Lower
    backward_autocast: AutocastState | None = None
    fullgraph: bool = False
