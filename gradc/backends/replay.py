"""Backend "replay": each Program run by the native executor, with eager's kernels in eager's order.

A Program that has no native form (a higher-order operator in it) is interpreted, and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradc import executor
from gradc.errors import UnsupportedError
from gradc.executor.core import interpret
from gradc.ir.program import Program
from gradc.journal import count


def lower(program: Program) -> Callable[[list[Any]], list[Any]]:
    """The program as a native plan; interpreted where it cannot be one, or where the extension was not built."""
    try:
        return executor.lower(program)
    except UnsupportedError:
        count("executor", "programs_interpreted")
        return interpret.lower(program)
