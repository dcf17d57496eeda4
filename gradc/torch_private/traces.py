"""What torch's own tools are told: structured traces, which ``tlparse`` lists, and spans in torch.profiler's.

is_traced, trace_artifact     TORCH_TRACE: torch's structured traces
compilation                   which of Dynamo's compilations is going on in this thread
span                          a named span in a profile
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch._guards import CompileContext, CompileId, compile_context
from torch._logging._internal import trace_log, trace_structured


@dataclasses.dataclass(frozen=True)
class Compilation:
    """One of Dynamo's: ``str`` of it is ``0/1``, as profiles and ``tlparse`` have it. ``attempt`` counts its restarts."""

    id: CompileId
    attempt: int

    def __str__(self) -> str:
        return str(self.id)

    @property
    def again(self) -> AbstractContextManager[object]:
        """What is traced inside belongs to it, though it is over."""
        context = CompileContext(self.id)
        context.attempt = self.attempt
        return compile_context(context)


def is_traced() -> bool:
    """True if torch writes structured traces into a folder. Its handler is there without one, too."""
    return any(getattr(handler, "root_dir", None) is not None for handler in trace_log.handlers)


def trace_artifact(name: str, text: Callable[[], str], of: Compilation | None = None) -> None:
    """Put a text into the structured trace. ``of``: what it belongs to, where that is not what is being compiled."""
    about = {"name": name, "encoding": "string"}
    with of.again if of is not None else contextlib.nullcontext():
        trace_structured("artifact", lambda: about, payload_fn=text, expect_trace_id=False)


def compilation() -> Compilation | None:
    """The one that is going on in this thread."""
    found = CompileContext.current_trace_id()
    return None if found is None else Compilation(found.compile_id, found.attempt)


def is_profiling() -> bool:
    """True while one of torch's profilers runs; a second one cannot."""
    return bool(torch.autograd.profiler._is_profiler_enabled)


def span(name: str) -> AbstractContextManager[object]:
    """What is inside shows under this name where a profiler looks. It is no op, so that no dispatch mode sees it."""
    # Torch writes names into its JSON as they are: a quotation mark in one leaves a file that nothing opens.
    plain = " ".join(name.translate({ord('"'): "'", ord("\\"): "/"}).split())
    made: AbstractContextManager[object] = torch._C._profiler._RecordFunctionFast(plain)
    return made
