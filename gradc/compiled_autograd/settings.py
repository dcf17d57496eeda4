"""Which backward passes are captured, and how: what ``enable`` and ``disable`` ask for, a stack of its own in each thread.

    setting_of: (compiler, dynamic) -> Setting        pushed: Setting -> context manager        present: () -> Setting

With an empty stack, ``gradc.config.compiled_autograd`` decides.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from typing import Any

from gradc.compiled_autograd.compilers import Compiler, options_of, takes_symbols
from gradc.config import config
from gradc.options import AUTO_BACKEND, DEFAULT_BACKEND


@dataclasses.dataclass(frozen=True)
class Setting:
    """What one ``enable`` asks for. ``is_on`` is False inside ``disable``. ``key``: equal for equal wishes.

    ``only_between_segments``: what consists of compiled segments alone is left to torch's engine, which is then faster.
    """

    is_on: bool
    compiler: Compiler | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    key: Any = None
    only_between_segments: bool = False

    @property
    def is_limited(self) -> bool:
        """True where captures have to pay: nobody asked to see them, and compiling has a limit."""
        return self.compiler is None and not self.fullgraph and config.compile_seconds is not None


ON, OFF = Setting(True), Setting(False)


class _Local(threading.local):
    def __init__(self) -> None:
        self.stack: list[Setting] = []
        self.suspended: Setting | None = None


_local = _Local()
_numbers = itertools.count(1)
changes = [0]  # another number whenever what ``suspend`` did may not hold any more, in whatever thread


def _note_change() -> None:
    changes[0] = next(_numbers)


def setting_of(compiler: Compiler | None, dynamic: bool | None) -> Setting:
    """The setting for the arguments of ``enable``."""
    options = options_of(compiler)
    if options is None:
        dynamic = dynamic if takes_symbols(compiler) else False
        return Setting(True, compiler, dynamic, key=None if compiler is None and dynamic is None else (compiler, dynamic))
    dynamic = options.dynamic if dynamic is None else dynamic
    is_native = options.is_bitwise and options.backend in (DEFAULT_BACKEND, AUTO_BACKEND)
    compiler = None if is_native else compiler
    return Setting(True, compiler, dynamic, options.fullgraph, (options.backend, options.is_bitwise, dynamic))


@functools.cache
def by_default(fullgraph: bool, only_between_segments: bool) -> Setting:
    """The setting around compiled functions that call backward."""
    return Setting(True, fullgraph=fullgraph, only_between_segments=only_between_segments)


def present() -> Setting:
    """The setting of this thread; ``OFF`` while it is suspended."""
    stack = _local.stack
    setting = stack[-1] if stack else _pushed()
    return OFF if setting is _local.suspended else setting


def _pushed() -> Setting:
    if _local.stack:
        return _local.stack[-1]
    return ON if _Config.was_ever_on and config.compiled_autograd else OFF


class _Config:
    """Asking ``gradc.config`` at each pass takes as long as all the rest."""

    was_ever_on = False


def _note(is_on: bool) -> None:
    _Config.was_ever_on = _Config.was_ever_on or is_on
    _note_change()


config.watch("compiled_autograd", _note)


def suspend() -> None:
    """Capture no more as long as the present setting holds, or until ``resume``: what was called last runs eagerly since that
    is faster, with its backward passes."""
    stack = _local.stack
    _local.suspended = stack[-1] if stack else _pushed()


def resume() -> None:
    if _local.suspended is not None:
        _local.suspended = None
        _note_change()


def is_left_to_torch(consists_of_segments: bool) -> bool:
    """True if a pass is neither captured nor counted. ``consists_of_segments``: it comes to compiled segments alone."""
    stack = _local.stack
    setting = stack[-1] if stack else _pushed()
    if setting is _local.suspended:
        return not setting.is_on
    return not setting.is_on or (consists_of_segments and setting.only_between_segments)


def is_suspended() -> bool:
    """True if a pass would be captured but for ``suspend``."""
    setting = _local.suspended
    return setting is not None and setting.is_on and setting is _pushed()


def are_captures_asked_for() -> bool:
    """True if passes are captured here unless that is suspended."""
    return _pushed().is_on


def may_be_suspended() -> bool:
    """False where a compiler of the user's is to see what is captured, or all has to be."""
    setting = _pushed()
    return not setting.is_on or (setting.compiler is None and not setting.fullgraph)


class pushed(contextlib.ContextDecorator):
    """``setting`` inside, in this thread. A class and no generator, for compiled steps enter it at each call."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __enter__(self) -> None:
        _local.stack.append(self.setting)
        _local.suspended = None
        _note_change()

    def __exit__(self, *error: object) -> None:
        _local.stack.pop()
        _note_change()


class pushed_by_default:
    """The setting of compiled functions that call backward, inside, unless one has been pushed around. Enter it often."""

    def __init__(self, fullgraph: bool) -> None:
        self.settings = by_default(fullgraph, True), by_default(fullgraph, False)

    def __enter__(self) -> None:
        stack = _local.stack
        stack.append(stack[-1] if stack else self.settings[config.compiled_autograd])
        _local.suspended = None
        _note_change()

    def __exit__(self, *error: object) -> None:
        _local.stack.pop()
        _note_change()
