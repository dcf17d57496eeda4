"""Compiled Autograd: capture what really happens at ``loss.backward()``, and replay it.

    with gradc.compiled_autograd.enable(): loss.backward()

    torch.autograd's run_backward --walk: key--> hit? replay : capture--> gradients, hooks run, .grad accumulated

Replaying makes the engine's calls in the engine's order, so the gradients are eager's, bit for bit. What cannot be captured
runs in torch's own engine, counted in ``gradc.counters["fallbacks"]``. See Note [Compiled autograd].
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gradc import native
from gradc.ambient import unsupported_mode
from gradc.capture.capture import Capture, capture
from gradc.compiled_autograd import cache_misses as logs
from gradc.compiled_autograd.compilers import Compiler, lower_with, options_of, takes_symbols
from gradc.compiled_autograd.graph_module import build_graph
from gradc.config import config
from gradc.errors import UnsupportedError
from gradc.ir.recorder import Recorder
from gradc.journal import count, fallback
from gradc.options import DEFAULT_BACKEND
from gradc.replay.pieces import lay_out
from gradc.symbolic.generalise import Earlier, General, Trace, fit, fit_sizes, generalise
from gradc.torch_private import dispatch_modes, is_inside_backward

MAX_RECORDINGS = 64
MAX_MISSES = 32
MAX_POINTS = 3  # sizes of one structure that are compared
MAX_REFUSALS = 3
MAX_SETTINGS = 16
_UNUSED = (
    "The differentiated Tensor at index {} appears to not have been used in the graph. "
    "Set allow_unused=True if this is the desired behavior."
)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What one ``enable`` asks for. ``is_on`` is False inside ``disable``. ``key``: equal for equal wishes."""

    is_on: bool
    compiler: Compiler | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    key: Any = None


class _Local(threading.local):
    def __init__(self) -> None:
        self.stack: list[Setting] = []


_local = _Local()


@contextlib.contextmanager
def enable(compiler: Compiler | None = None, *, dynamic: bool | None = None) -> Iterator[None]:
    """Capture the backward passes inside, in this thread.

    Arguments:
        compiler: what runs the captured graphs: ``gradc.compile(backend=..., fullgraph=..., dynamic=...)``, or any function
            from GraphModule to callable. Called once for each piece between nodes that run live. None: native replay.
        dynamic: whether one captured graph serves other sizes too: True, from the first capture on; False, never;
            None, once a size has changed.

    Raises:
        FallbackError: in a backward that cannot be captured, under ``gradc.compile(fullgraph=True)``.
    """
    with _pushed(_asked(compiler, dynamic)):
        yield


@contextlib.contextmanager
def disable() -> Iterator[None]:
    """Run the backward passes inside in torch's engine, uncounted, whatever is enabled around."""
    with _pushed(Setting(False)):
        yield


@contextlib.contextmanager
def enable_by_default(fullgraph: bool = False) -> Iterator[None]:
    """Capture inside, unless ``enable`` or ``disable`` has already said how."""
    with _pushed(_local.stack[-1] if _local.stack else Setting(True, fullgraph=fullgraph)):
        yield


def last_graph() -> torch.fx.GraphModule | None:
    """The graph captured last, as a GraphModule that can be called: (inputs, sizes, scalars, hooks) -> results."""
    return None if _last is None else _last()


def recordings() -> Any:
    """What has been captured for the present setting: ``gradc._C.Recordings``."""
    return _session().recordings


def reset() -> None:
    """Forget every captured graph."""
    global _last
    _last = None
    _sessions.clear()
    logs.reset()


def _asked(compiler: Compiler | None, dynamic: bool | None) -> Setting:
    options = options_of(compiler)
    if options is None:
        key = None if compiler is None else compiler
        dynamic = dynamic if takes_symbols(compiler) else False
        return Setting(True, compiler, dynamic, key=(key, dynamic) if compiler is not None or dynamic is not None else None)
    dynamic = options.dynamic if dynamic is None else dynamic
    compiler = None if options.backend == DEFAULT_BACKEND else compiler
    return Setting(True, compiler, dynamic, options.fullgraph, (options.backend, dynamic))


@contextlib.contextmanager
def _pushed(setting: Setting) -> Iterator[None]:
    _local.stack.append(setting)
    try:
        yield
    finally:
        _local.stack.pop()


_ON, _OFF = Setting(True), Setting(False)


def _setting() -> Setting:
    if _local.stack:
        return _local.stack[-1]
    return _ON if config.compiled_autograd else _OFF


class _Session:
    """What this process has captured for one setting."""

    def __init__(self, setting: Setting) -> None:
        extension = native.extension()
        assert extension is not None
        self.recordings: Any = extension.Recordings(MAX_RECORDINGS)
        self.lower = lower_with(setting.compiler)
        self.num_misses = 0
        self.earlier: dict[Any, Earlier] = {}  # by structure
        self.generals: dict[Any, General] = {}  # by recording


_sessions: dict[Any, _Session] = {}
_last: Callable[[], torch.fx.GraphModule] | None = None


def _session() -> _Session:
    setting = _setting()
    session = _sessions.get(setting.key)
    if session is None:
        session = _sessions[setting.key] = _Session(setting)
        if len(_sessions) > MAX_SETTINGS:
            del _sessions[next(iter(_sessions))]
    return session


# ---- the way in


def install() -> None:
    """Send every backward pass of torch.autograd through here. Done once, at import; one comparison where not enabled."""
    original = torch.autograd.graph._engine_run_backward
    if hasattr(original, "_gradc_original"):
        return

    @functools.wraps(original)
    def run_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if is_inside_backward():
            native.before_backward_pass_inside_another()
        if not _setting().is_on:
            return original(tensors, *args, **kwargs)
        results = _run(tensors, *args, **kwargs)
        return original(tensors, *args, **kwargs) if results is NotImplemented else results

    run_backward._gradc_original = original  # type: ignore[attr-defined]
    torch.autograd.graph._engine_run_backward = run_backward  # type: ignore[assignment]
    torch.autograd._engine_run_backward = run_backward  # type: ignore[assignment]


def _run(
    tensors: Any,
    grads: Any,
    keep_graph: bool,
    create_graph: bool,
    inputs: Any = (),
    allow_unreachable: bool = False,
    accumulate_grad: bool = False,
) -> Any:
    """The results of one backward pass; NotImplemented if torch's engine has to run it."""
    extension: Any = native.extension()
    reason = _why_not(extension, create_graph)
    if reason is not None:
        return _leave(reason)
    try:
        walk = extension.Walk(tensors, grads, keep_graph, inputs, accumulate_grad)
    except extension.Unsupported as error:
        return _leave(str(error))
    except RuntimeError:  # a saved tensor that was freed, or modified in place: the engine raises where it meets it
        return _leave("saved tensor that cannot be read")
    results = _replay_or_capture(extension, walk)
    if results is NotImplemented or accumulate_grad:
        return results
    if not allow_unreachable and any(result is None for result in results):
        raise RuntimeError(_UNUSED.format([result is None for result in results].index(True)))
    return tuple(results)


def _replay_or_capture(extension: Any, walk: Any) -> Any:
    session = _session()
    recording = session.recordings.find(walk) or _proven(session, walk)
    if recording is None:
        session.num_misses += 1
        if session.num_misses > MAX_MISSES:
            return _leave("graph that differs at every step")
        return _capture(extension, session, walk)
    if recording.is_live:
        return _leave("graph that cannot be captured")
    session.num_misses = 0
    count("compiled_autograd", "hits")
    results, gave_up = extension.replay(walk, recording)
    if gave_up:
        count("compiled_autograd", "finished live")
    return results


def _proven(session: _Session, walk: Any) -> Any:
    """The recording that serves these sizes too, though they are new; None if there is none."""
    recording = session.recordings.find(walk, False)
    general = session.generals.get(recording)
    if general is None:
        return None
    values = recording.symbol_values(walk)
    if not general.is_proven(walk, values):
        return None
    session.recordings.prove(recording, values)
    return recording


def _general(session: _Session, walk: Any) -> General | None:
    """A trace for all sizes, where sizes have changed or are said to be dynamic."""
    earlier, dynamic = session.earlier.get(_structure(walk)), _setting().dynamic
    if dynamic is False or (earlier is None and not dynamic) or (earlier and earlier.num_refusals >= MAX_REFUSALS):
        return None
    try:
        if earlier is None:
            return generalise(walk, fit_sizes(walk), [])
        return generalise(walk, fit([*earlier.points, walk.numbers]), earlier.boundaries)
    except UnsupportedError as error:
        _refuse(str(error), earlier)
        return None


def _structure(walk: Any) -> Any:
    return walk.key, tuple(walk.order)


def _capture(extension: Any, session: _Session, walk: Any) -> Any:
    """Run the pass live, keep what was recorded, and return its results."""
    logs.miss(walk, is_static=_setting().dynamic is False)
    offsets = [tensor.storage_offset() for tensor in walk.tensors]
    general = _general(session, walk)
    results, captured = capture(walk)
    count("compiled_autograd", "captures")
    count("stats", "unique_graphs")
    try:
        if captured.failure:
            raise UnsupportedError(captured.failure)
        layout = lay_out(captured, session.lower)
        session.recordings.keep(extension.Recording(walk, layout, offsets if captured.recorder.has_offsets else []))
        if general is not None:
            _keep_general(extension, session, walk, general, captured, offsets)
        _note_sizes(session, walk, captured)
        _remember(captured)
    except UnsupportedError as error:
        logs.not_captured(str(error))
        session.recordings.keep(extension.Recording(walk, None, []))
    finally:
        captured.forget_tensors()
    return results


def _keep_general(
    extension: Any, session: _Session, walk: Any, general: General, captured: Capture, offsets: list[int]
) -> None:
    """Keep a trace for all sizes, if at these sizes it is what has just been captured."""
    values = [walk.numbers[source] for source in general.fit.sources]
    if not general.agrees(Trace.of(captured), values):
        return _refuse("trace that differs from the capture", session.earlier.get(_structure(walk)))
    layout = lay_out(general.capture, session.lower, general.names, general.fit.terms, general.fit.sources)
    recording = extension.Recording(walk, layout, offsets if general.capture.recorder.has_offsets else [])
    session.recordings.keep(recording)
    session.recordings.prove(recording, values)
    session.generals[recording] = general
    count("compiled_autograd", "made dynamic")
    if len(session.generals) > MAX_RECORDINGS:
        del session.generals[next(iter(session.generals))]


def _note_sizes(session: _Session, walk: Any, captured: Capture) -> None:
    """Remember the sizes of this structure, for the next time they differ."""
    known = session.earlier.pop(_structure(walk), None) or Earlier([], [])
    points = [*known.points[-MAX_POINTS:], walk.numbers]
    session.earlier[_structure(walk)] = Earlier(points, captured.boundaries, known.num_refusals)
    if len(session.earlier) > MAX_RECORDINGS:
        del session.earlier[next(iter(session.earlier))]


def _refuse(reason: str, earlier: Earlier | None) -> None:
    logs.not_dynamic(reason)
    count("compiled_autograd", "not made dynamic")
    if earlier is not None:
        earlier.num_refusals += 1


def _remember(captured: Capture) -> None:
    """Make the captured graph available to ``last_graph`` and the logs."""
    global _last
    report = captured.report()
    _last = functools.cache(lambda: build_graph(report))
    logs.captured(_last)


def _why_not(extension: Any, create_graph: bool) -> str | None:
    """Why torch's engine has to run this pass, or None. "" is a reason not worth counting: gradc's own tracing."""
    if extension is None or not hasattr(extension, "Walk"):
        return "no extension"
    if create_graph:
        return "create_graph"
    mode = unsupported_mode()
    if mode and any(isinstance(active, Recorder) for active in dispatch_modes()):
        return ""
    if mode:
        return mode
    if torch._dynamo.compiled_autograd.compiled_autograd_enabled:
        return "torch's compiled autograd"
    return None


def _leave(reason: str) -> Any:
    if reason:
        fallback(f"compiled autograd: {reason}", fullgraph=_setting().fullgraph)
    return NotImplemented


install()
