"""The Programs that gradc makes of a step, as its backends are given them, and what each does in the step that is measured.

    with programs.watching(): ...        programs.found -> list of Watched

Between a backend and the rest of gradc stands nothing but a Program and what runs it. So a backend that is watched sees all of
a region's Programs, and can run one call by call with a clock at each, or as a whole with one clock around it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from gradc.accelerator import clock
from gradc.backends import Lower, watched
from gradc.executor import is_plan
from gradc.executor.core import interpret
from gradc.ir.program import Program
from gradc.journal import telling
from gradc.reporting.calls import Log, Made, timing
from gradc.reporting.model import Phase
from gradc.reporting.storages import Block
from gradc.traces.captured import Origin
from gradc.traces.collect import PIECE, Collector


class Measure(enum.Enum):
    """What is done with the runs of Programs."""

    NOTHING = enum.auto()
    WHOLE = enum.auto()
    CALLS = enum.auto()


@dataclasses.dataclass
class Watched:
    """A Program, and its runs in the step that is measured.

    Attributes:
        made_in_step: the number of the step, from 1.
        num_runs, seconds: in the run of the step that is going on, of the Program as a whole, as its backend made it.
        quickest: the least of ``seconds``, of all runs of the step.
        inputs: what it was last given, tensors only, by slot.
    """

    program: Program
    made_in_step: int
    num_runs: int = 0
    seconds: float = 0.0
    quickest: float = math.inf
    inputs: dict[int, Made] = dataclasses.field(default_factory=dict)

    @property
    def is_backward(self) -> bool:
        return self.program.name.startswith(("backward", PIECE))

    @property
    def phase(self) -> Phase:
        return Phase.BACKWARD if self.is_backward else Phase.FORWARD


@dataclasses.dataclass(frozen=True)
class GraphPlace:
    """Where a call stands: the index of its Program among those found, and its own; None for what no instruction asked for."""

    graph: int
    instruction: int | None


class Programs:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.found: list[Watched] = []
        self.measure = Measure.NOTHING
        self.step = 1
        self.log: Log[GraphPlace] = Log()
        self._origins: dict[int, Origin] = {}
        self._collector = Collector(lambda program, origin: self._origins.__setitem__(id(program), origin))
        self._handed_over: list[tuple[int, list[Block]]] = []

    def end(self) -> None:
        """After it.

        The node that runs a backward holds what it is given until it is done, since a watched Program is called from Python.
        Run natively, it hands it over, and what is read for the last time dies then: so it is counted.
        """
        if self.measure is Measure.WHOLE:
            for found in self.found:
                found.quickest = min(found.quickest, found.seconds)
        self.measure = Measure.NOTHING
        self.log.storages.look(len(self.log.calls))
        for end, given in self._handed_over:
            for block in given:
                if block.end is not None and block.end <= end:
                    block.end = min(block.end, block.last + 1)

    def begin(self, measure: Measure) -> None:
        """Before each run of the step that is measured."""
        self.measure, self.log, self._handed_over = measure, Log(), []
        if measure is Measure.WHOLE:
            for found in self.found:
                found.num_runs, found.seconds = 0, 0.0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        with watched(self._collector.watch), telling(self._collector), watched(self._watch):
            yield

    def _watch(self, lower: Lower) -> Lower:
        """The backend, watched. A Program without calls, as what is left where Python only hands something on, is not shown."""

        def lowered(program: Program) -> Callable[[list[Any]], list[Any]]:
            run = lower(program)
            if not program.instructions:
                return run
            self.found.append(Watched(program, self.step))
            return functools.partial(self._run, len(self.found) - 1, run, functools.cache(lambda: interpret.lower(program)))

        return lowered

    def _run(self, index: int, run: Callable[..., Any], interpreted: Callable[[], Any], inputs: list[Any]) -> list[Any]:
        found = self.found[index]
        if self.measure is Measure.CALLS:
            values = zip(found.program.inputs, inputs, strict=True)
            found.inputs = {slot: Made.of(value) for slot, value in values if isinstance(value, Tensor)}
            given = [self.log.storages.block_of(value, len(self.log.calls)) for value in inputs if isinstance(value, Tensor)]
            with timing(self.log, _Pointer(index, found)):
                outputs: list[Any] = interpreted()(inputs)
            if found.is_backward and is_plan(run):
                self._handed_over.append((len(self.log.calls), [block for block in given if block is not None]))
            return outputs
        start = clock()
        outputs = run(inputs)
        if self.measure is Measure.WHOLE:
            found.num_runs += 1
            found.seconds += clock() - start
        return outputs

    def origin_of(self, found: Watched) -> Origin | None:
        """None for a forward that was lowered once more, to call saved-tensors hooks in it."""
        return self._origins.get(id(found.program))


class _Pointer:
    """Says at which instruction a run is: calls come in the Program's order, each once."""

    def __init__(self, index: int, found: Watched) -> None:
        self._index, self._found, self._next = index, found, 0

    def __call__(self, op: Any) -> tuple[Phase, GraphPlace]:
        calls = self._found.program.instructions
        if self._next < len(calls) and calls[self._next].op is op:
            self._next += 1
            return self._found.phase, GraphPlace(self._index, self._next - 1)
        return self._found.phase, GraphPlace(self._index, None)
