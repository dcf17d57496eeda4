"""Compiled Autograd: capture what really happens at ``loss.backward()``, and replay it.

    with gradc.compiled_autograd.enable(): loss.backward()

    torch.autograd's run_backward --walk: key--> hit? replay : capture--> gradients, hooks run, .grad accumulated

Replaying makes the engine's calls in the engine's order, so the gradients are eager's, bit for bit. What cannot be captured
runs in torch's own engine, counted in ``gradc.counters["fallbacks"]``. See Note [Compiled autograd]; ``entry`` has the way.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gradc import native
from gradc.compiled_autograd import cache_misses, graph_module, sessions, settings
from gradc.compiled_autograd.compilers import Compiler
from gradc.compiled_autograd.entry import INTERCEPT, PASSES
from gradc.compiled_autograd.graph_module import last_graph
from gradc.config import config

if TYPE_CHECKING:
    from gradc._C import Recordings


def enable(compiler: Compiler | None = None, *, dynamic: bool | None = None) -> contextlib.AbstractContextManager[None]:
    """Capture the backward passes inside, in this thread, and replay what was captured before.

    Gradients, and what hooks see, have eager's values, shapes, dtypes and strides. What cannot be captured runs in torch's own
    engine, counted in ``gradc.counters["fallbacks"]``. The forward need not be compiled. After torch's Compiled Autograd; what
    is otherwise is in docs/migrating.md, how it works in Note [Compiled autograd].

    Arguments:
        compiler: what runs the captured graphs: ``gradc.compile(backend=..., fullgraph=..., dynamic=...)``, or any function
            from GraphModule to callable. Called once for each piece between nodes that run live. None: native replay.
        dynamic: whether one captured graph serves other sizes too: True, from the first capture on; False, never;
            None, once a size has changed.

    Returns:
        What to put behind ``with``.

    Raises:
        FallbackError: in a backward that cannot be captured, under ``gradc.compile(fullgraph=True)``.
        VersionError: if the extension was built for another torch.
    """
    native.is_built()
    _take_passes()
    return settings.pushed(settings.setting_of(compiler, dynamic))


def disable() -> contextlib.AbstractContextManager[None]:
    """Run the backward passes inside in torch's engine, uncounted, whatever is enabled around.

    Returns:
        What to put behind ``with``.
    """
    return settings.pushed(settings.OFF)


def enable_by_default(fullgraph: bool = False) -> contextlib.AbstractContextManager[None]:
    """Capture inside what is not compiled anyway, unless ``enable`` or ``disable`` has already said how.

    For gradc's own use around compiled functions that call backward. Expects that gradc's patches are applied, as they are when
    something is compiled.

    Arguments:
        fullgraph: raise where a pass cannot be captured, instead of counting it.

    Returns:
        What to put behind ``with``, as often as one likes.

    Raises:
        FallbackError: in a backward that cannot be captured, under ``fullgraph``.
    """
    return settings.pushed_by_default(fullgraph)


def recordings() -> Recordings:
    """What has been captured for the present setting (compiler, ``dynamic``): ``len`` of it tells how many graphs.

    Returns:
        A collection with ``len`` and ``clear``; at most 64 are kept.
    """
    return sessions.session_of(settings.present()).recordings


def reset() -> None:
    """Forget every captured graph, of all settings; what is compiled in forwards stays."""
    graph_module.forget()
    sessions.forget()
    cache_misses.reset()


def _take_passes(is_on: bool = True) -> None:
    if is_on:
        INTERCEPT.apply()
        PASSES.apply()


config.watch("compiled_autograd", _take_passes)

__all__ = ["disable", "enable", "enable_by_default", "last_graph", "recordings", "reset"]
