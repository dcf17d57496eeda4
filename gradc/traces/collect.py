"""Tell, of each Program that a backend is given, what it is: the backends see Programs, and the journal says of which region.

    Collector(found): ``found`` is called with each Program and its Origin, as it is captured
    collecting(found): while inside, ``found`` is called with each CapturedProgram

In one thread the journal tells of a backward just before it is lowered, and of a region just after its forward was.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator

import torch

from gradc.backends import Lower, Runner, watched
from gradc.ir.program import Program
from gradc.journal import Event, Graph, telling
from gradc.torch_private.traces import Compilation, compilation
from gradc.traces.captured import CapturedProgram, Origin, captured_program

Found = Callable[[Program, Origin], None]

PIECE = "compiled_autograd"  # the name of a piece of a captured backward pass, which is of no one region
_BACKWARD = re.compile(r"backward of segment (\d+) of (.+)")


@contextlib.contextmanager
def collecting(found: Callable[[CapturedProgram], None]) -> Iterator[None]:
    """See the module's docstring. What was compiled before is not told, nor its backwards."""
    collector = Collector(lambda program, origin: found(captured_program(program, origin)))
    with watched(collector.watch), telling(collector):
        yield


class Collector:
    """See the module's docstring. A forward that is lowered once more, to call saved-tensors hooks in it, is left out."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._said = _Said()
        self._numbers: collections.defaultdict[tuple[str, int | None], itertools.count[int]]
        self._numbers = collections.defaultdict(itertools.count)
        self._compilations: dict[str, Compilation | None] = {}

    def append(self, event: Event) -> None:
        """What the journal tells."""
        if isinstance(event.what, Graph):
            if self._said.forward is not None:
                self._tell_forward(event.what.name, self._said.forward)
        elif event.artifact == "recompiles":
            self._said.recapture = str(event.what)
        elif event.artifact == "graphs" and (backward := _BACKWARD.match(str(event.what))):
            self._said.backward = backward[2], int(backward[1])

    def watch(self, lower: Lower) -> Lower:
        """A backend, watched."""

        def lowered(program: Program) -> Runner:
            run = lower(program)
            self._tell(program)
            return run

        return lowered

    def _tell(self, program: Program) -> None:
        """A Program without calls, as what is left where Python only hands something on, is not worth a word."""
        of, reason = self._said.backward, self._said.recapture
        self._said.backward, self._said.forward, self._said.recapture = None, None, ""
        if not program.instructions:
            return
        if of is not None:
            region, segment = of
            about = f"{region}, segment {segment}: "
            why = reason.removeprefix(about) if reason.startswith(about) else ""
            self._found(program, Origin(region, segment, self._number(*of), why, self._compilations.get(region)))
        elif program.name == PIECE:
            self._found(program, Origin("", None, self._number("", None), reason))
        else:
            self._said.forward = program

    def _tell_forward(self, region: str, program: Program) -> None:
        self._said.forward = None
        of = self._compilations[region] = compilation() or self._compilations.get(_region_of(region))
        self._found(program, Origin(region, None, self._number(region, None), "", of, torch.is_grad_enabled()))

    def _number(self, region: str, segment: int | None) -> int:
        return next(self._numbers[region, segment])


class _Said(threading.local):
    """What one thread was told and waits for the rest of: a forward, for its region; a region's segment, for its backward."""

    forward: Program | None = None
    backward: tuple[str, int] | None = None
    recapture = ""


def _region_of(name: str) -> str:
    """``derivative of region 3``, ``region 3, split at leaves`` -> ``region 3``."""
    found = re.search(r"region \d+", name)
    return found[0] if found else name
