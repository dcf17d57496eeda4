"""The values that symbolic sizes have in one call.

Sizes: a number of a Program (an int, or a Sym over symbols) -> an int
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from typing import Any

import sympy
import torch

from gradc.ir.floats import TERMS
from gradc.ir.text import symbolic
from gradc.ir.values import Sym

_NAMES = {"math": math, "torch": torch, **TERMS}  # what the text of an expression reads


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The values of a region's symbols in one call."""

    values: dict[str, int]

    def __hash__(self) -> int:
        return hash(tuple(self.values.items()))

    def __call__(self, value: Any) -> Any:
        """A number of the tape's in this call: itself, or what the expression comes to."""
        return value.kind(eval(_code(value.expr), _NAMES, self.values)) if isinstance(value, Sym) else value


@functools.lru_cache(maxsize=1 << 14)
def _code(expr: sympy.Basic) -> types.CodeType:
    """Kept, for to print an expression takes a hundred times as long as what it says."""
    return compile(symbolic(expr), "<size>", "eval")
