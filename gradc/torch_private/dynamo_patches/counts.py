"""Read and guard an ``itertools.count`` of the program without the warning of Python 3.12 and 3.13, which is of pickling it."""

from __future__ import annotations

import itertools
import sys
import warnings
from typing import Any

from torch._dynamo.guards import GuardBuilder
from torch._dynamo.variables import builder

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, instead

PICKLING_WARNS = (3, 12) <= sys.version_info < (3, 14)


def read_counts_without_warnings() -> Patch:
    """Read a count while tracing with the warning left out, and guard what it prints: all digits of a number of Python's own.

    Others are not followed, so no guard is for them.
    """
    return Patch(
        "read_counts_without_warnings",
        "Dynamo asks an itertools.count how to pickle it, at each call, of which Python 3.12 and 3.13 warn.",
        (around(builder, "normalize_count_iter", _read), instead(GuardBuilder, "COUNT_ITERATOR_MATCH", _match)),
    )


def _read(original: Method, count: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return original(count)


def _match(self: Any, guard: Any) -> None:
    printed = repr(self.get(guard))
    words = [f"repr({guard.name}) == {printed!r}"]
    manager = self.get_guard_manager(guard)
    manager.add_lambda_guard(lambda it: type(it) is itertools.count and repr(it) == printed, words, guard.user_stack)
