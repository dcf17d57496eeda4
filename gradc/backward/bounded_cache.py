"""A dictionary of bounded size that makes each entry once, in one thread, when it is first asked for.

    BoundedCache(capacity, lock).get(key, make) -> what is kept for the key, or what ``make()`` returns

When it is full, the oldest entry goes. Not the least recently used one: a native node keeps what it got and asks no more, so
nobody here would know what is in use; and as a hit changes nothing, it takes no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """See the module's docstring. ``lock`` is held while an entry is made: who asks meanwhile for what is not there waits."""

    def __init__(self, capacity: int, lock: threading.RLock) -> None:
        self.capacity, self._lock = capacity, lock
        self._known: dict[Key, Value] = {}

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Nothing is kept if ``make`` raises: the next to ask, who may be waiting, tries again."""
        try:
            return self._known[key]
        except KeyError:
            pass
        with self._lock:
            if key not in self._known:
                made = make()
                while len(self._known) >= self.capacity:
                    del self._known[next(iter(self._known))]
                self._known[key] = made
            return self._known[key]

    def items(self) -> list[tuple[Key, Value]]:
        """What is kept now, oldest first."""
        return list(self._known.items())
