"""What gradc captured, in torch's structured traces: with ``TORCH_TRACE=folder`` set, ``tlparse folder`` lists it.

    start_where_traced: () -> None     when gradc is imported; without TORCH_TRACE nothing begins, and nothing costs anything

Beside torch's own artifacts of a compilation stand gradc's: each program, by its name, and each fallback, graph break, verdict
and reason of a recapture, once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gradc.journal import Event, telling
from gradc.torch_private.traces import is_traced, trace_artifact
from gradc.traces.captured import CapturedProgram
from gradc.traces.collect import collecting
from gradc.traces.words import Told, describe

_started = contextlib.ExitStack()


def start_where_traced() -> None:
    """See the module's docstring."""
    if is_traced():
        _started.enter_context(tracing_structured())


@contextlib.contextmanager
def tracing_structured() -> Iterator[None]:
    """While inside, whoever reads torch's structured traces is told of gradc's programs and events."""
    with collecting(_trace_program), telling(_Events()):
        yield


def _trace_program(captured: CapturedProgram) -> None:
    trace_artifact(captured.name, lambda: str(captured), captured.compilation)


class _Events:
    """A listener of the journal. What happens at each step is told once."""

    def __init__(self) -> None:
        self._told: set[Told] = set()

    def append(self, event: Event) -> None:
        told = describe(event)
        if told is not None and told not in self._told:
            self._told.add(told)
            trace_artifact(told.name, lambda: str(told))
