"""What gradc did, counted, logged and told: the nested counters, the log artifacts, and who listens.

    count(group, name) -> None          gradc.counters[group][name] += 1
    fallback(kind, ...) -> None         counted, logged, an error where the caller asked for fullgraph
    counter_of(Uncompiled) -> what counts it, the same way, each time that a call comes there
    is_logged(artifact) -> bool         True when GRADC_LOGS (or set_logs) names the artifact
    is_heard(artifact) -> bool          True when, besides, somebody listens
    listening() -> list of Event        what happened inside; gradc.explain reads it
    telling(listener)                   each Event as it happens, inside
    at_each_pass(listener)              each call that comes to an Uncompiled, inside; as events only the first is told

Near the ground: imports nothing of gradc but errors and torch_private.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn, Protocol

from gradc.errors import ConfigError, FallbackError
from gradc.torch_private.dynamo import Uncompiled
from gradc.torch_private.logs import artifact_logger, log_names

ARTIFACTS = ("compiled_autograd", "compiled_autograd_verbose", "recompiles", "graphs", "fallbacks", "perf")


class Counters(collections.defaultdict[str, collections.Counter[str]]):
    """``counters["fallbacks"]["dispatch mode"] -> 3``: how many calls ran a part of theirs otherwise than compiled, and why.

    A dictionary of counters, by group and name; what was never counted is 0. ``gradc.reset()`` and ``.clear()`` empty it.

    Groups:

    - ``fallbacks``: what gradc ran eagerly, by its reason, once for each call of that part.
    - ``uncompiled``: what Dynamo gave to no graph, by its reason, once for each call that came there: a graph break, or a
      function that was not compiled, as after the recompile limit (of one function, the first thousand calls). Functions
      that reach no tensor, or calculate nothing themselves, are in neither.
    - ``stats``: ``unique_graphs``: graphs compiled and backward passes captured; ``calls run eagerly to compare``: those
      that were timed beside compiled ones.
    - ``aot``: ``backward_compiles``: backwards compiled, one for each segment and state it was called in.
    - ``compiled_autograd``: backward passes: ``captures``, ``hits``, and others.
    - ``auto``: programs that Inductor compiled for ``backend="auto"``, what runs them, and why others were not compiled.
    - ``optim``: ``native steps`` of optimizers, and why a step was torch's.
    - ``device_graphs``: plans that were ``recorded`` as graphs of their device, and why others run call by call, once for each.
    - ``verified``: calls and backwards compared in shadow mode, differences, what was left out.
    - ``executor``: ``programs_interpreted``: programs that the Python interpreter runs; ``plans for sizes that came back``:
      of Programs with symbols.
    """

    def __init__(self) -> None:
        super().__init__(collections.Counter)


@dataclasses.dataclass(frozen=True)
class Fallback:
    """One part that ran eagerly.

    Attributes:
        kind: why: the name under which it is counted.
        detail: what exactly was met, or "".
        where: the user's line, or "".
        advice: what to write instead, or ""; known to who explains it.
    """

    kind: str
    detail: str
    where: str
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class Kept:
    """Memory that a region keeps from its forward for its backward.

    Attributes:
        num_bytes: its size, in the sizes of the call that was captured.
        tensor: "float32[16, 32]", the first that lies in it.
        made_by: the op that makes it: "aten.tanh.default".
        where: the user's line of that op, or "".
        needed_by: the autograd nodes of eager's that read it in backward, in the order of forward.
    """

    num_bytes: int
    tensor: str
    made_by: str
    where: str
    needed_by: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Cut:
    """One segment of a region's backward.

    Attributes:
        num_nodes: how many autograd nodes of eager's it stands for.
        saved_bytes: what it keeps from the forward, in bytes.
        where: the user's line that it ends with, or "".
    """

    num_nodes: int
    saved_bytes: int
    where: str


@dataclasses.dataclass(frozen=True)
class Graph:
    """One region: a graph that was compiled.

    Attributes:
        name: "region 3".
        num_calls: how many ATen calls its forward makes.
        segments: those of its backward, each a ``Cut``; none if nothing in it requires a gradient.
        saved_bytes: what it keeps for backward, beside its inputs, in bytes.
        where: the user's line that it begins at, or "".
        kept: what that is, the largest first.
    """

    name: str
    num_calls: int
    segments: tuple[Cut, ...]
    saved_bytes: int
    where: str
    kept: tuple[Kept, ...] = ()


class Event(NamedTuple):
    """Something that happened: the artifact it is logged under, and a value, or the text that is logged."""

    artifact: str
    what: Graph | Fallback | Uncompiled | str


def reason(kind: str, detail: str) -> str:
    """Why something ran eagerly, in words."""
    return f"{kind}: {detail}" if detail else kind


class Listener(Protocol):
    """Whoever is told what happens, by ``append``: a list, or a tool that does something with it at once."""

    def append(self, event: Event, /) -> None: ...


counters = Counters()
_listeners: list[Listener] = []
_at_each_pass: list[Callable[[Uncompiled], None]] = []
# They cannot stand in TORCH_LOGS, which is read before gradc is imported: hence GRADC_LOGS.
LOG_NAMES = log_names("gradc", ARTIFACTS)
LOG_NAMES.apply()
_LOGGERS = {artifact: artifact_logger("gradc", artifact) for artifact in ARTIFACTS}


def logger(artifact: str) -> logging.Logger:
    """The logger of one artifact; torch._logging knows it as ``gradc.__graphs``, ``gradc.__fallbacks``, ..."""
    return _LOGGERS[artifact]


def is_logged(artifact: str) -> bool:
    return logger(artifact).isEnabledFor(logging.DEBUG)


def is_heard(artifact: str) -> bool:
    """True if anybody reads what is logged under ``artifact``."""
    return bool(_listeners) or is_logged(artifact)


def log(artifact: str, text: str | Callable[[], str], what: Callable[[], Graph | Fallback | Uncompiled] | None = None) -> None:
    """Log ``text`` (or what it returns: then built only if somebody reads it) under ``artifact``.

    Whoever listens gets what ``what`` returns, or else the text.
    """
    if _listeners:
        tell(artifact, what() if what is not None else text() if callable(text) else text)
    show(artifact, text)


def tell(artifact: str, what: Graph | Fallback | Uncompiled | str) -> None:
    """Say it to those who listen, and log nothing."""
    for listener in _listeners:
        listener.append(Event(artifact, what))


def show(artifact: str, text: str | Callable[[], str]) -> None:
    """Log it, and say nothing to those who listen."""
    target = logger(artifact)
    if target.isEnabledFor(logging.DEBUG):
        target.debug("%s", text() if callable(text) else text)


@contextlib.contextmanager
def listening() -> Iterator[list[Event]]:
    """Everything that is logged inside, in any thread and whatever is switched on."""
    events: list[Event] = []
    with telling(events):
        yield events


@contextlib.contextmanager
def telling(listener: Listener) -> Iterator[None]:
    """The same, handed to ``listener`` as it happens, in the thread in which it does."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners[:] = [known for known in _listeners if known is not listener]


@contextlib.contextmanager
def at_each_pass(listener: Callable[[Uncompiled], None]) -> Iterator[None]:
    """Call ``listener`` each time that a call comes to what no graph holds, before Python runs it."""
    _at_each_pass.append(listener)
    try:
        yield
    finally:
        _at_each_pass.remove(listener)


def listeners_at_each_pass() -> list[Callable[[Uncompiled], None]]:
    """Those of ``at_each_pass``: empty while nobody listens."""
    return _at_each_pass


_num_compiled = 0
_num_offers = 0


def note_compiled() -> None:
    """A region, or a backward for a new state, was compiled."""
    global _num_compiled
    _num_compiled += 1


def num_compiled() -> int:
    """How much this process has compiled so far; unlike counters, never cleared."""
    return _num_compiled


def note_offer() -> None:
    """Other code came to be tried, or was chosen: what was slower than eager before may not be any more."""
    global _num_offers
    _num_offers += 1


def num_offers() -> int:
    """How often that was so in this process."""
    return _num_offers


def count(group: str, name: str, number: int = 1) -> None:
    counters[group][name] += number


def fallback(kind: str, detail: str = "", where: str = "", *, fullgraph: bool = False) -> None:
    """Count and log one fallback to eager; raise it instead where the caller asked for ``fullgraph=True``.

    Raises:
        FallbackError: if ``fullgraph``.
    """
    message = _message(kind, detail, where)
    if fullgraph:
        _refuse(message)
    count("fallbacks", kind)
    log("fallbacks", lambda: f"runs eagerly: {message}", lambda: Fallback(kind, detail, where))


def counter_of(found: Uncompiled, *, fullgraph: bool = False) -> Callable[[], None]:
    """What counts ``found`` at each call that comes there, and logs it at the first; under ``fullgraph=True`` it raises.

    Raises:
        FallbackError: not here but where what it returns is called, if ``fullgraph``.
    """
    message = _message(found.kind, found.detail, found.where) + (f"\n  {found.advice}" if found.advice else "")
    number = itertools.count()

    def met() -> None:
        if fullgraph:
            _refuse(message)
        counters["uncompiled"][found.kind] += 1
        for listener in _at_each_pass:
            listener(found)
        if next(number) == 0:
            log("fallbacks", f"{'graph break' if found.is_break else 'not compiled'}: {message}", lambda: found)

    return met


def _message(kind: str, detail: str, where: str) -> str:
    return reason(kind, detail) + (f"\n  at {where}" if where else "")


def _refuse(message: str) -> NoReturn:
    raise FallbackError(
        f"fullgraph=True, but a part would run eagerly: {message}\n"
        "  Compile without fullgraph=True to run that part as eager does (counted in gradc.counters), or take it\n"
        "  out of the compiled function."
    )


def set_logs(names: str) -> None:
    """Switch on the artifacts named in ``names``, as GRADC_LOGS does at import: "graphs,fallbacks", or "all".

    As in TORCH_LOGS, a name may begin with "+".

    Raises:
        ConfigError: for a name that is no artifact.
    """
    asked = [name for name in (part.strip().removeprefix("+") for part in names.split(",")) if name]
    chosen = ARTIFACTS if "all" in asked else asked
    for name in (name for name in asked if name != "all"):
        if name not in ARTIFACTS:
            raise ConfigError(f"GRADC_LOGS: unknown artifact {name!r}. The artifacts are: {', '.join(ARTIFACTS)}.")
    for name in chosen:
        _show(logger(name))


def _show(target: logging.Logger) -> None:
    """Print ``target`` on stderr by a handler of its own, whatever torch._logging does with it."""
    target.setLevel(logging.DEBUG)
    target.propagate = False
    if not target.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s:%(name)s:%(message)s"))
        target.addHandler(handler)


set_logs(os.environ.get("GRADC_LOGS", ""))
