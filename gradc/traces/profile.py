"""What gradc does, by name in a profile: torch.profiler shows the ops; here is what makes them, and what was in the way.

tracing(path or None): while inside, compilations, fallbacks and recaptures are spans; ``path`` gets a trace for Perfetto
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from gradc.backends import Lower, Runner, watched
from gradc.errors import ConfigError
from gradc.ir.program import Program
from gradc.journal import Event, Graph, Uncompiled, at_each_pass, telling
from gradc.torch_private.traces import compilation, is_profiling, span
from gradc.traces.words import Told, describe, describe_uncompiled


@contextlib.contextmanager
def tracing(path: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Show what gradc does in a profile, and write one, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

        with gradc.tracing("step.json"):
            step()

    Torch's profiler shows by itself a compiled forward as ``Torch-Compiled Region: 0/0``, the backward of a segment as
    ``gradc::Segment``, the ops inside, and the phases of compiling. Added are spans whose names begin with ``gradc``: what is
    lowered for a backend, which region each compilation became, and each fallback, recapture and pass of a graph break, with
    the reason and your line, at the time and in the thread in which it happens.

    Arguments:
        path: of the trace to write, ending in ``.json`` or ``.json.gz``; what is inside runs under torch.profiler. None:
            nothing is written, for a profiler of your own, which may be around or inside.

    Raises:
        ConfigError: for a path, where a profiler is running.
    """
    if path is not None and is_profiling():
        raise ConfigError(
            f"gradc.tracing({os.fspath(path)!r}): a profiler is running already, and there can be one only.\n"
            "  Use gradc.tracing() without a path, and let that profiler write its trace."
        )
    with watched(_watch), telling(_Marks()), at_each_pass(_mark_pass):
        if path is None:
            yield
            return
        with torch.profiler.profile() as profiler:
            yield
    profiler.export_chrome_trace(os.fspath(path))


def _watch(lower: Lower) -> Lower:
    def lowered(program: Program) -> Runner:
        with span(f"gradc: a backend lowers {program.name}, {len(program.instructions)} calls"):
            return lower(program)

    return lowered


class _Marks:
    """A listener of the journal that makes a span without length of each event."""

    def append(self, event: Event) -> None:
        if text := _text(event):
            with span(text):
                pass


@torch.compiler.disable
def _mark_pass(found: Uncompiled) -> None:
    with span(_words(describe_uncompiled(found))):
        pass


def _text(event: Event) -> str:
    if isinstance(event.what, Graph):
        of = compilation()
        return f"gradc: {event.what.name} was captured{f', for Torch-Compiled Region: {of}' if of else ''}"
    if event.artifact == "graphs":
        return f"gradc: {str(event.what).splitlines()[0]} was captured"
    told = describe(event)
    return "" if told is None or isinstance(event.what, Uncompiled) else _words(told)  # of which each pass is marked


def _words(told: Told) -> str:
    return f"{told.name.replace('_', ' ').replace('gradc ', 'gradc: ', 1)}: {told}"
