"""What an event is called in a trace, and what is said of it.

describe: Event -> Told(name, text), or None for an event that a trace shows otherwise
"""

from __future__ import annotations

import dataclasses

from gradc.journal import Event, Fallback, Uncompiled, reason

_NAMES = {"recompiles": "gradc_recapture", "perf": "gradc_verdict", "fallbacks": "gradc_fallback"}


@dataclasses.dataclass(frozen=True)
class Told:
    """One event for people. ``name`` is its kind, ``text`` what happened, ``where`` the user's line, or ""."""

    name: str
    text: str
    where: str = ""

    def __str__(self) -> str:
        return self.text + (f"\n  at {self.where}" if self.where else "")


def describe(event: Event) -> Told | None:
    """See the module's docstring."""
    what = event.what
    if isinstance(what, Fallback):
        return Told("gradc_fallback", reason(what.kind, what.detail), what.where)
    if isinstance(what, Uncompiled):
        return describe_uncompiled(what)
    return Told(_NAMES[event.artifact], str(what)) if event.artifact in _NAMES else None


def describe_uncompiled(found: Uncompiled) -> Told:
    name = "gradc_graph_break" if found.is_break else "gradc_not_compiled"
    return Told(name, reason(found.kind, found.detail), found.where)
