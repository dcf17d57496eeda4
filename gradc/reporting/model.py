"""What a report of a training step says, as values: graphs and their ops, memory, times, what was captured again, parity.

StepReport: to_dict() -> texts, numbers, lists and dictionaries only, as for JSON

``collect.py`` makes one; ``page.py`` makes a page of HTML of it, and adds nothing. Seconds are seconds, sizes are bytes.
"""

from __future__ import annotations

import dataclasses
import enum
import html
from typing import Any

from gradc.parity.report import Report
from gradc.reporting.explain import Explanation


class Phase(enum.Enum):
    """Which part of the step a graph or a call belongs to. ``OTHER``: gradients are not recorded, as in an optimizer's step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OTHER = "without gradients"


class Role(enum.Enum):
    """What a piece of memory is to the step."""

    PARAMETER = "parameters"
    STATE = "buffers and optimizer state"
    ARGUMENT = "arguments and other inputs"
    GRADIENT = "gradients"
    ACTIVATION = "made by forward"
    TEMPORARY = "made by backward and later"


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the user's."""

    path: str
    number: int
    function: str
    code: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number} in {self.function}: {self.code}"


@dataclasses.dataclass(frozen=True)
class Value:
    """A tensor of a graph: ``shape`` in the sizes of the step that was measured, else as it was captured."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    num_bytes: int
    label: str = ""

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Op:
    """One call of a graph.

    Attributes:
        name: "aten.mm.default".
        graph: the index of its graph in the report.
        made, read: what it returns, and what it is given.
        module: the path of the module that makes it, or whose gradient it is: "blocks.0.mlp"; "" if there is none.
        line: the user's line; in backward, that of the forward call whose gradient it is.
        node: the autograd node of eager's that it is part of; "" in forward.
        autocast: the autocast around the call, in words; "" if there was none.
        seconds: of all its calls in the step that was measured, timed one by one; None if the graph did not run in it.
        eager_seconds: the same of the calls of eager's that it stands for; None if none was found.
        num_calls: how often it ran in that step.
        partners: of a call of forward, the ops of backward that are its gradient, by their index; and the reverse.
    """

    name: str
    graph: int
    made: tuple[Value, ...]
    read: tuple[Value, ...]
    module: str = ""
    line: Line | None = None
    node: str = ""
    autocast: str = ""
    seconds: float | None = None
    eager_seconds: float | None = None
    num_calls: int = 0
    partners: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Saved:
    """A tensor that a backward graph is given because forward kept it; ``needed_by`` names autograd nodes."""

    value: Value
    needed_by: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Graph:
    """One Program that gradc made.

    Attributes:
        name: "forward of region 0", "backward of segment 1 of region 0".
        segment: for a backward, the number of the segment; else None.
        num_runs: how often it ran in the step that was measured.
        seconds: of these runs, as gradc makes them: the whole graph at once.
        saved: what a backward keeps from forward.
        made_in_step: the step in which it was compiled, from 1.
        reason: why a backward was compiled again; "" for the first of its segment.
        program: the calls, as ``gradc.programs`` prints them.
    """

    name: str
    phase: Phase
    region: str
    segment: int | None = None
    num_runs: int = 0
    seconds: float | None = None
    saved: tuple[Saved, ...] = ()
    made_in_step: int = 1
    reason: str = ""
    program: str = ""


@dataclasses.dataclass(frozen=True)
class Alive:
    """Memory that is in use at the peak. ``op``: the index of the op that made it; None for what no graph made."""

    name: str
    role: Role
    num_bytes: int
    op: int | None = None
    line: Line | None = None


@dataclasses.dataclass(frozen=True)
class Curve:
    """Memory over the calls of a step, in the order in which they ran.

    Attributes:
        seconds: how long all calls up to this one took together.
        num_bytes: by role, what was in use when the call had returned.
        ops: the index of each call's op; None for a call that is in no graph.
        phases: the part of the step that each call belongs to.
        peak: the position of the call with which most was in use.
        alive: what that was, the largest first.
        places: where each call stands among the calls of the graphs, so that two curves can be compared op by op.
    """

    seconds: tuple[float, ...]
    num_bytes: dict[Role, tuple[int, ...]]
    ops: tuple[int | None, ...]
    phases: tuple[Phase, ...]
    peak: int
    alive: tuple[Alive, ...]
    places: tuple[float, ...] = ()

    @property
    def peak_bytes(self) -> int:
        return sum(series[self.peak] for series in self.num_bytes.values()) if self.seconds else 0

    def totals(self) -> list[int]:
        return [sum(each) for each in zip(*self.num_bytes.values())]


@dataclasses.dataclass(frozen=True)
class OpTime:
    """All calls of one op of a phase, in eager and in gradc's graphs, each call timed by itself."""

    name: str
    phase: Phase
    num_eager: int
    eager_seconds: float
    num_compiled: int
    compiled_seconds: float


@dataclasses.dataclass(frozen=True)
class Times:
    """
    Attributes:
        eager, compiled: of a whole step without anything else: the median of ``num_runs``, which were made in turns.
        first: of the first step, which compiles.
        by_op: the calls, timed one by one; what took longest first.
        eager_spread, compiled_spread: the quartiles of the same runs; () where there are too few.
        num_threads: of torch.
    """

    eager: float
    compiled: float
    first: float
    num_runs: int
    by_op: tuple[OpTime, ...] = ()
    eager_spread: tuple[float, ...] = ()
    compiled_spread: tuple[float, ...] = ()
    num_threads: int = 1


@dataclasses.dataclass(frozen=True, repr=False)
class StepReport:
    """What ``gradc.report`` found and wrote.

    Attributes:
        title: the name of the step.
        versions: what it ran on, in a line.
        num_steps: how many steps were run; the last was measured.
        graphs, ops: what gradc made of the step.
        memory, eager_memory: over the step that was measured.
        times: of whole steps, and of all calls of each op, in eager and compiled.
        explanation: graph breaks, fallbacks, recaptures.
        parity: what ``gradc.check`` found; None if it was not asked.
        notes: what could not be found out, and why; what makes the times doubtful.
        made: the date and the time.
        path: of the page, or "".
    """

    title: str
    versions: str
    num_steps: int
    graphs: tuple[Graph, ...]
    ops: tuple[Op, ...]
    memory: Curve
    eager_memory: Curve
    times: Times
    explanation: Explanation
    parity: Report | None = None
    notes: tuple[str, ...] = ()
    made: str = ""
    path: str = ""

    def __repr__(self) -> str:
        times = f"eager {1000 * self.times.eager:.3g} ms, compiled {1000 * self.times.compiled:.3g} ms"
        sizes = f"{len(self.graphs)} graphs, {len(self.ops)} ops"
        return f"<StepReport of {self.title}: {times}, {sizes}; {self.path or 'no page'}>"

    def _repr_html_(self) -> str:
        """The page in a frame, which a notebook loads from its file: the page itself is megabytes."""
        said, path = html.escape(repr(self)), html.escape(self.path, quote=True)
        frame = f'<iframe src="{path}" width="100%" height="720" title="gradc report"></iframe>' if self.path else ""
        return f'<p>{said} <a href="{path}">The page alone</a></p>{frame}' if self.path else f"<p>{said}</p>"

    def to_dict(self) -> dict[str, Any]:
        """Texts, numbers, lists and dictionaries only, as for JSON."""
        parts = {name: _plain(getattr(self, name)) for name in _PLAIN}
        parity = None if self.parity is None else self.parity.to_dict()
        return parts | {"explanation": self.explanation.to_dict(), "parity": parity}


_PLAIN = ("title", "versions", "num_steps", "graphs", "ops", "memory", "eager_memory", "times", "notes", "made")


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value
