"""What compiled autograd says in the logs ``compiled_autograd`` and ``compiled_autograd_verbose``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradc.report.record import is_logged, log


def reset() -> None:
    """Forget the earlier graphs that misses are compared with."""


def miss(walk: Any) -> None:
    """Say why no recording fits."""


def not_captured(reason: str) -> None:
    log("compiled_autograd", f"not captured: {reason}")


def captured(graph: Callable[[], Any]) -> None:
    """Print the captured graph."""
    if is_logged("compiled_autograd") or is_logged("compiled_autograd_verbose"):
        graph()
