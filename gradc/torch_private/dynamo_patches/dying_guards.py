"""Guards of something that died stay in memory for a while: another thread, or this one, may be in the middle of asking them.

Where Dynamo guards an object by its address, it drops all guards of that compilation as the object dies. The look-up holds them
by a bare pointer, and lets others run: as it takes a lock, and in each guard that is written in Python, where garbage may be
collected, too. A process whose threads make, compile and drop models of one class dies there after some hundred of them, under
any backend (pytorch#195355). Where Dynamo asks why guards failed, a KeyError tells that they died just then.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any

from torch._dynamo import guards
from torch._dynamo.guards import CheckFunctionManager

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around

SECONDS_KEPT = 60.0  # far more than any guard takes, garbage collection included


def keep_guards_that_may_be_asked() -> Patch:
    kept: deque[tuple[float, Any, Any]] = deque()  # since when, and the two trees of guards that a look-up may be in

    def is_concerned(manager: Any, *_: Any, **__: Any) -> bool:
        return bool(kept) or hasattr(manager, "gradc_keeps")

    def invalidate(original: Method, self: Any, obj_str: str) -> None:
        manager = getattr(self, "guard_manager", None)
        if hasattr(self, "gradc_keeps") and (root := getattr(manager, "root", None)) is not None:
            kept.append((time.monotonic(), root, getattr(manager, "diff_guard_root", None)))
        original(self, obj_str=obj_str)
        _drop_the_old(kept)

    return Patch(
        "keep_guards_that_may_be_asked",
        "Dynamo frees guards of what died while another thread, or a garbage collection amid them, still asks them.",
        (
            after(CheckFunctionManager, "compile_check_fn", _compile),
            around(CheckFunctionManager, "invalidate", invalidate, scope=is_concerned),
            around(guards, "get_guard_fail_reason", _reason),
        ),
    )


def _compile(_: Any, self: Any, *others: Any) -> None:
    self.gradc_keeps = True


def _reason(original: Method, guard_manager: Any, code: Any, *others: Any, **options: Any) -> str:
    if code is None:
        return "what was guarded died"
    return original(guard_manager, code, *others, **options)


def _drop_the_old(kept: deque[tuple[float, Any, Any]]) -> None:
    """Without a lock: it is called as something dies, wherever that may be. Of the young it looks at one: many die at once."""
    oldest = time.monotonic() - SECONDS_KEPT
    with contextlib.suppress(IndexError):  # none is left
        while (entry := kept[0])[0] < oldest:
            with contextlib.suppress(ValueError):  # another thread was faster
                kept.remove(entry)
