"""Guards of something that died stay in memory for a while: another thread, or this one, may be in the middle of asking them.

Where Dynamo guards an object by its address, it drops all guards of that compilation as the object dies. The look-up holds them
by a bare pointer, and lets others run: as it takes a lock, and in each guard that is written in Python, where garbage may be
collected, too. A process whose threads make, compile and drop models of one class dies there after some hundred of them, under
any backend (pytorch#195355). Where Dynamo asks why guards failed, a KeyError tells that they died just then.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from typing import Any

from torch._dynamo import guards
from torch._dynamo.guards import CheckFunctionManager

from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import Method, Patch, Replace

SECONDS_KEPT = 60.0  # far more than any guard takes, garbage collection included


def keep_guards_that_may_be_asked() -> Patch:
    kept: deque[tuple[float, Any, Any]] = deque()  # since when, and the two trees of guards that a look-up may be in

    def make_compile(original: Method) -> Method:
        @functools.wraps(original)
        def compile_guards(self: Any, *others: Any) -> None:
            original(self, *others)
            if is_compiling_for_gradc():
                self.gradc_keeps = True

        return compile_guards

    def make_invalidate(original: Method) -> Method:
        @functools.wraps(original)
        def invalidate(self: Any, obj_str: str) -> None:
            manager = getattr(self, "guard_manager", None)
            if hasattr(self, "gradc_keeps") and (root := getattr(manager, "root", None)) is not None:
                kept.append((time.monotonic(), root, getattr(manager, "diff_guard_root", None)))
            original(self, obj_str=obj_str)
            _drop_the_old(kept)

        return invalidate

    def make_reason(original: Method) -> Method:
        @functools.wraps(original)
        def get_guard_fail_reason(guard_manager: Any, code: Any, *others: Any, **options: Any) -> str:
            if code is None and is_compiling_for_gradc():
                return "what was guarded died"
            return original(guard_manager, code, *others, **options)

        return get_guard_fail_reason

    return Patch(
        "keep_guards_that_may_be_asked",
        "Dynamo frees guards of what died while another thread, or a garbage collection amid them, still asks them.",
        (
            Replace(CheckFunctionManager, "compile_check_fn", make_compile),
            Replace(CheckFunctionManager, "invalidate", make_invalidate),
            Replace(guards, "get_guard_fail_reason", make_reason),
        ),
    )


def _drop_the_old(kept: deque[tuple[float, Any, Any]]) -> None:
    """Without a lock: it is called as something dies, wherever that may be."""
    oldest = time.monotonic() - SECONDS_KEPT
    for entry in list(kept):
        if entry[0] >= oldest:
            return
        with contextlib.suppress(ValueError):  # another thread was faster
            kept.remove(entry)
