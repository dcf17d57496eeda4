"""What torch's own ``step`` made of a parameter group's settings, kept for as long as they are the same objects.

    LearnedGroups.learn:  (group, settings of the arithmetic, its native step) -> None
    LearnedGroups.update: optimizer -> how many of its groups are updated, from the first on; torch's own step does the others
    LearnedGroups.quick:  does the step without Python, where all groups are known and small; None without the extension

torch's step is some 10 us of Python for each group, whatever the parameters; of the group it only reads settings. The learning
rate, which schedules change, is read anew each time (``optim/csrc/group_step.h``).
"""

from __future__ import annotations

import weakref
from typing import Any

from gradc import native
from gradc.journal import count, counters
from gradc.optim.formulas import Settings
from gradc.torch_private.optimizers import DECIDE, HOOKS_OF_ALL, Group, depends_on_groups_alone

_MOST_GROUPS = 1000  # that are remembered of one optimizer; whoever makes new groups all the time is not served
_PLAIN = (bool, int, float, str, type(None))
_READ_ANEW = ("params", "lr")


class LearnedGroups:
    """For the optimizers of one class, whose step asks whether a graph is captured or not."""

    def __init__(self, asks_whether_captured: bool) -> None:
        self._asks = asks_whether_captured
        self._of_optimizers: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()
        self.quick: Any = native.extension.QuickSteps(DECIDE, HOOKS_OF_ALL, counters, self._asks) if native.is_built() else None

    def learn(self, group: Group, settings: Settings, step: Any) -> None:
        own = group.settings
        if type(own) is not dict or settings.get("lr") is not own.get("lr") or not all(map(_is_plain, _kept(own))):
            return
        learned = self._of_optimizers.setdefault(group.optimizer, {})
        if len(learned) < _MOST_GROUPS:
            learned[id(own)] = step

    def update(self, optimizer: Any) -> int:
        learned = self._of_optimizers.get(optimizer)
        if not learned or not depends_on_groups_alone(optimizer):
            return 0
        if self._asks and native.extension.is_current_stream_captured():
            return 0
        groups, state, steps = optimizer.param_groups, optimizer.state, list[Any]()
        for number, group in enumerate(groups):
            step = learned.get(id(group))
            if step is None or not step.step(group, state):
                return number
            count("optim", "native steps")
            steps.append(step)
        if self.quick:
            self.quick.learn(optimizer, steps)
        return len(groups)


def _kept(group: dict[str, Any]) -> list[Any]:
    return [None if name in _READ_ANEW else value for name, value in group.items()]


def _is_plain(value: Any) -> bool:
    """True for what stays the same as long as it is the same object."""
    return type(value) in _PLAIN or (type(value) is tuple and all(type(item) in _PLAIN for item in value))
