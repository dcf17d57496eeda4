"""The garbage collector while something is compiled.

    set_aside: context manager; what is alive at its start is not looked at by collections inside

Compiling makes some hundred thousand objects, so Python's collector goes through everything alive several times: through all
of torch's modules, a fifth of the time of a first call. What is made meanwhile is collected as ever while it is young; what has
grown old is mostly what the compilation is for, and is gone through less often: an eighth of the time for 1,000 layers.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = 20  # times less often than else

_lock = threading.Lock()
_depth = 0
_is_ours = False
_threshold = _seldom = gc.get_threshold()


@contextmanager
def set_aside() -> Iterator[None]:
    _begin()
    try:
        yield
    finally:
        _end()


def _begin() -> None:
    global _depth, _is_ours, _threshold, _seldom
    with _lock:
        _depth += 1
        if _depth == 1:
            _is_ours = gc.isenabled() and gc.get_freeze_count() == 0  # what the user froze stays as it is
            if _is_ours:
                gc.freeze()
                _threshold = young, middle, old = gc.get_threshold()
                _seldom = young, middle, SELDOM * old
                gc.set_threshold(*_seldom)


def _end() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0 and _is_ours:
            gc.unfreeze()
            if gc.get_threshold() == _seldom:  # nobody has set another meanwhile
                gc.set_threshold(*_threshold)
