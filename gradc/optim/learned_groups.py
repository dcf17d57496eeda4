"""What torch's own ``step`` made of a parameter group's settings, kept for as long as they are the same objects.

    LearnedGroups.learn:  (group, settings of the arithmetic, how it is updated) -> None
    LearnedGroups.update: optimizer -> how many of its groups are updated, from the first on; torch's own step does the others

torch's step is some 10 us of Python for each group, whatever the parameters; of the group it only reads settings. The learning
rate, which schedules change, is read anew each time.
"""

from __future__ import annotations

import dataclasses
import operator
import weakref
from collections.abc import Callable
from typing import Any

from gradc.optim.formulas import Settings
from gradc.torch_private.optimizers import Group, depends_on_groups_alone

_MOST_GROUPS = 1000  # that are remembered of one optimizer; whoever makes new groups all the time is not served
_PLAIN = (bool, int, float, str, type(None))
_READ_ANEW = ("params", "lr")

Update = Callable[[Any, Any, Settings], bool]  # parameters, state, settings -> whether it is done; if not, nothing has happened


@dataclasses.dataclass(frozen=True)
class _Learned:
    """``values`` are those of a group under ``names``, with None for what is read anew."""

    names: tuple[str, ...]
    values: list[Any]
    settings: Settings
    update: Update

    def is_of(self, group: dict[str, Any]) -> bool:
        return tuple(group) == self.names and all(map(operator.is_, _kept(group), self.values))


class LearnedGroups:
    """For the optimizers of one class."""

    def __init__(self) -> None:
        self._of_optimizers: weakref.WeakKeyDictionary[Any, dict[int, _Learned]] = weakref.WeakKeyDictionary()

    def learn(self, group: Group, settings: Settings, update: Update) -> None:
        own = group.settings
        if type(own) is not dict or settings.get("lr") is not own.get("lr") or not all(map(_is_plain, _kept(own))):
            return
        learned = self._of_optimizers.setdefault(group.optimizer, {})
        if len(learned) < _MOST_GROUPS:
            learned[id(own)] = _Learned(tuple(own), _kept(own), settings, update)

    def update(self, optimizer: Any) -> int:
        learned = self._of_optimizers.get(optimizer)
        if not learned or not depends_on_groups_alone(optimizer):
            return 0
        for number, group in enumerate(optimizer.param_groups):
            known = learned.get(id(group))
            if known is None or type(group) is not dict or not known.is_of(group):
                return number
            lr = group["lr"]
            if type(lr) not in (float, int) or not known.update(group["params"], optimizer.state, {**known.settings, "lr": lr}):
                return number
        return len(optimizer.param_groups)


def _kept(group: dict[str, Any]) -> list[Any]:
    return [None if name in _READ_ANEW else value for name, value in group.items()]


def _is_plain(value: Any) -> bool:
    """True for what stays the same as long as it is the same object."""
    return type(value) in _PLAIN or (type(value) is tuple and all(type(item) in _PLAIN for item in value))
