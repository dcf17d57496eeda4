"""The values that symbolic sizes have in one call.

    Sizes: a number of a Program (an int, or a Sym over symbols) -> an int
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from gradc.ir.text import symbolic
from gradc.ir.values import Sym


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The values of a region's symbols in one call."""

    values: dict[str, int]

    def __hash__(self) -> int:
        return hash(tuple(self.values.items()))

    def __call__(self, value: Any) -> Any:
        """A number of the tape's in this call: itself, or what the expression comes to."""
        return value.kind(eval(symbolic(value.expr), {"math": math, **self.values})) if isinstance(value, Sym) else value
