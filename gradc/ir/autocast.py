"""Autocast as the ops see it that are recorded: what is cast for an op, what it calls in turn is not cast for again.

is_cast_for: (op, AutocastState) -> bool             CallerAutocast.seen_by: op -> AutocastState
"""

from __future__ import annotations

import dataclasses
from typing import Any

from gradc.ambient import AutocastState
from gradc.torch_private.modes import has_autocast_kernel


def is_cast_for(op: Any, state: AutocastState) -> bool:
    """True if autocast in ``state`` casts the arguments of ``op``; what the op calls then sees no autocast."""
    return any(has_autocast_kernel(op, device) for device, _ in state.enabled)


@dataclasses.dataclass(frozen=True)
class CallerAutocast:
    """The autocast around calls. A dispatch mode cannot ask for it, since it runs with autocast off.

    ``is_at_work``: an op runs that autocast casts for, so that what it calls sees none.
    """

    state: AutocastState
    is_at_work: bool = False

    def seen_by(self, op: Any) -> AutocastState:
        """The autocast that the calls see which the op's kernel makes."""
        return AutocastState() if self.is_at_work or is_cast_for(op, self.state) else self.state
