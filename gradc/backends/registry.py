"""The backends: what turns a Program into something that runs.

register_backend(name, lower)      lower: Program -> (list of inputs, emptied -> list of outputs)
lookup_backend(name) -> lower      list_backends() -> names
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

from gradc.errors import ConfigError
from gradc.executor import Runner
from gradc.ir.program import Program

Lower = Callable[[Program], Runner]
Wrap = Callable[[Lower], Lower]

_backends: dict[str, Lower] = {}
_wraps: list[Wrap] = []


def register_backend(name: str, lower: Lower) -> Lower:
    """Make ``lower`` known as ``backend=name``.

    Arguments:
        name: what ``gradc.compile(backend=...)`` is to call it.
        lower: takes a Program (``gradc.ir.program``: ATen calls in order) and returns a function of one list (inputs, which
            it may empty) that returns the list of the Program's outputs, with the shapes, dtypes and strides that the
            Program's slots say; where sizes change, ``program.symbols`` says which input each is read off. May raise
            ``gradc.errors.UnsupportedError``: that part then runs eagerly, counted.

    Returns:
        ``lower``.

    Raises:
        ConfigError: if the name is taken.
    """
    if name in _backends:
        raise ConfigError(f"register_backend: there is a backend {name!r} already. Choose another name.")
    _backends[name] = lower
    return lower


def lookup_backend(name: str) -> Lower:
    """The backend called ``name``.

    Raises:
        ConfigError: if there is none; the message lists those there are.
    """
    if name not in _backends:
        raise ConfigError(f"backend={name!r} is not known. The backends are: {', '.join(list_backends())}.")
    return seen(_backends[name])


def list_backends() -> list[str]:
    """The names that ``gradc.compile(backend=...)`` takes, in alphabetical order.

    Returns:
        "auto", "eager", "inductor", "replay", and those that were registered.
    """
    return sorted(_backends)


@contextlib.contextmanager
def watched(wrap: Wrap) -> Iterator[None]:
    """While inside, each backend is what ``wrap`` makes of it, in every thread: for tools that look at Programs.

    What was compiled before is not seen, nor its backwards, which may be compiled later.
    """
    _wraps.append(wrap)
    try:
        yield
    finally:
        _wraps.remove(wrap)


def seen(lower: Lower) -> Lower:
    """``lower``, or, if tools look at Programs now, what they make of it."""
    return functools.partial(_lower_watched, lower) if _wraps else lower


def _lower_watched(lower: Lower, program: Program) -> Runner:
    for wrap in _wraps:
        lower = wrap(lower)
    return lower(program)
