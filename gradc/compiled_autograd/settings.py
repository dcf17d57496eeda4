"""Which backward passes are captured, and how: what ``enable`` and ``disable`` ask for, a stack of its own in each thread.

    setting_of: (compiler, dynamic) -> Setting        pushed: Setting -> context manager        present: () -> Setting

With an empty stack, ``gradc.config.compiled_autograd`` decides.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

from gradc.compiled_autograd.compilers import Compiler, options_of, takes_symbols
from gradc.config import config
from gradc.options import DEFAULT_BACKEND


@dataclasses.dataclass(frozen=True)
class Setting:
    """What one ``enable`` asks for. ``is_on`` is False inside ``disable``. ``key``: equal for equal wishes."""

    is_on: bool
    compiler: Compiler | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    key: Any = None


ON, OFF = Setting(True), Setting(False)


class _Local(threading.local):
    def __init__(self) -> None:
        self.stack: list[Setting] = []


_local = _Local()


def setting_of(compiler: Compiler | None, dynamic: bool | None) -> Setting:
    """The setting for the arguments of ``enable``."""
    options = options_of(compiler)
    if options is None:
        dynamic = dynamic if takes_symbols(compiler) else False
        return Setting(True, compiler, dynamic, key=None if compiler is None and dynamic is None else (compiler, dynamic))
    dynamic = options.dynamic if dynamic is None else dynamic
    compiler = None if options.backend == DEFAULT_BACKEND else compiler
    return Setting(True, compiler, dynamic, options.fullgraph, (options.backend, dynamic))


def present() -> Setting:
    """The setting of this thread."""
    if _local.stack:
        return _local.stack[-1]
    return ON if config.compiled_autograd else OFF


@contextlib.contextmanager
def pushed(setting: Setting) -> Iterator[None]:
    """``setting`` inside, in this thread."""
    _local.stack.append(setting)
    try:
        yield
    finally:
        _local.stack.pop()


@contextlib.contextmanager
def pushed_by_default(setting: Setting) -> Iterator[None]:
    """``setting`` inside, unless one has been pushed around."""
    with pushed(_local.stack[-1] if _local.stack else setting):
        yield
