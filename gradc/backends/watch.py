"""Who looks on while Programs are lowered: tools that show what gradc compiles, and no part of compiling.

    watching(watcher): while inside, each Program that a backend is given goes through ``watcher``
    watched(name, lower) -> lower, through whoever looks on; ``lower`` itself while nobody does

What was compiled before is not seen, nor are its backwards, which are compiled later.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from gradc.ir.program import Program

Runner = Callable[[list[Any]], list[Any]]
Lower = Callable[[Program], Runner]
Watcher = Callable[[str, Lower, Program], Runner]  # of a backend's name, how to lower, and what: lowers it

_watchers: list[Watcher] = []


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """See the module's docstring. In every thread."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def watched(name: str, lower: Lower) -> Lower:
    """See the module's docstring."""
    return functools.partial(_lower, name, lower) if _watchers else lower


def _lower(name: str, lower: Lower, program: Program) -> Runner:
    for watcher in _watchers:
        lower = functools.partial(watcher, name, lower)
    return lower(program)
