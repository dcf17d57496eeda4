"""Tell, of each Program that a backend is given, what it is: the backends see Programs, and the journal says of which region.

    collecting(found): while inside, ``found`` is called with each CapturedProgram, as it is captured

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
from gradc.traces.captured import CapturedProgram, name_of_backward, name_of_forward

Found = Callable[[CapturedProgram], None]

PIECE = "compiled_autograd"  # the name of a piece of a captured backward pass, which is of no one region
_BACKWARD = re.compile(r"backward of segment (\d+) of (.+)")


def segment_of(event: Event) -> tuple[str, int] | None:
    """The region and the number of the segment whose backward the journal tells of; None for another event."""
    found = _BACKWARD.match(str(event.what)) if event.artifact == "graphs" else None
    return found and (found[2], int(found[1]))


@contextlib.contextmanager
def collecting(found: Found) -> Iterator[None]:
    """See the module's docstring. What was compiled before is not told, nor its backwards."""
    collector = Collector(found)
    with watched(collector.watch), telling(collector):
        yield


class Collector:
    """See the module's docstring. A forward that is lowered once more, to call saved-tensors hooks in it, is left out."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._said = _Said()
        self._num_pieces = itertools.count()
        self._states: collections.defaultdict[tuple[str, int], itertools.count[int]] = collections.defaultdict(itertools.count)
        self._forwards: collections.defaultdict[str, itertools.count[int]] = collections.defaultdict(itertools.count)
        self._compilations: dict[str, Compilation | None] = {}

    def append(self, event: Event) -> None:
        """What the journal tells."""
        if isinstance(event.what, Graph):
            if self._said.forward is not None:
                self._tell_forward(event.what.name, self._said.forward)
        elif (segment := segment_of(event)) is not None:
            self._said.backward = segment

    def watch(self, lower: Lower) -> Lower:
        """A backend, watched."""

        def lowered(program: Program) -> Runner:
            run = lower(program)
            self._tell(program)
            return run

        return lowered

    def _tell(self, program: Program) -> None:
        """A Program without calls, as what is left where Python only hands something on, is not worth a word."""
        of, self._said.backward, self._said.forward = self._said.backward, None, None
        if not program.instructions:
            return
        if of is not None:
            self._tell_backward(*of, program)
        elif program.name == PIECE:
            self._found(CapturedProgram(f"gradc_{PIECE}_{next(self._num_pieces)}", program))
        else:
            self._said.forward = program

    def _tell_forward(self, region: str, program: Program) -> None:
        self._said.forward = None
        of = self._compilations[region] = compilation() or self._compilations.get(_region_of(region))
        name = name_of_forward(region, next(self._forwards[region]))
        self._found(CapturedProgram(name, program, None, of, torch.is_grad_enabled()))

    def _tell_backward(self, region: str, segment: int, program: Program) -> None:
        name = name_of_backward(region, segment, next(self._states[region, segment]))
        self._found(CapturedProgram(name, program, None, self._compilations.get(region)))


class _Said(threading.local):
    """What one thread was told and waits for the rest of: a forward, for its region; a region's segment, for its backward."""

    forward: Program | None = None
    backward: tuple[str, int] | None = None


def _region_of(name: str) -> str:
    """``derivative of region 3``, ``region 3, split at leaves`` -> ``region 3``."""
    found = re.search(r"region \d+", name)
    return found[0] if found else name
