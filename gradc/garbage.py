"""The garbage collector while something is compiled.

    set_aside: context manager; what is alive at its start is not looked at by collections inside

Compiling makes some hundred thousand objects, so Python's collector goes through everything alive several times: through all
of torch's modules, a fifth of the time of a first call. What is made meanwhile is collected as ever.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_depth = 0
_is_ours = False


@contextmanager
def set_aside() -> Iterator[None]:
    _begin()
    try:
        yield
    finally:
        _end()


def _begin() -> None:
    global _depth, _is_ours
    with _lock:
        _depth += 1
        if _depth == 1:
            _is_ours = gc.isenabled() and gc.get_freeze_count() == 0  # what the user froze stays as it is
            if _is_ours:
                gc.freeze()


def _end() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0 and _is_ours:
            gc.unfreeze()
