"""The way in: every backward pass of torch.autograd comes through here, and is captured and replayed where that is asked for.

    run_backward: what torch gives its engine -> results; Eagerly: torch's engine has to run this pass

    walk -> key -> find, or prove, or record -> replay

What torch's engine has to run is counted in ``gradc.counters["fallbacks"]``, but for ``disable``, gradc's own tracing, a pass
that raises since its graph is wrong, a pass of what runs eagerly since that is faster (its call is counted), and what consists
of compiled segments alone: inside a compiled function, or under ``create_graph``, where each segment is compiled with its
derivative.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradc import native
from gradc.ambient import unsupported_mode
from gradc.compiled_autograd.record import record
from gradc.compiled_autograd.sessions import session_of
from gradc.compiled_autograd.settings import Setting, is_suspended, present
from gradc.errors import UnsupportedError
from gradc.ir.recorder import Recorder
from gradc.journal import count, fallback
from gradc.torch_private.autograd import is_inside_backward, is_way_into_engine
from gradc.torch_private.backward_passes import tell_of_passes_as_in_eager
from gradc.torch_private.dynamo import is_compiled_autograd_enabled
from gradc.torch_private.fakes import is_fake
from gradc.torch_private.modes import dispatch_modes
from gradc.torch_private.patches import Patch, Replace
from gradc.torch_private.transforms import without_transforms

if TYPE_CHECKING:
    from gradc._C import Recording, Walk

_WRONG = ("root without a history", "input that requires no gradient")
_UNUSED = (
    "The differentiated Tensor at index {} appears to not have been used in the graph. "
    "Set allow_unused=True if this is the desired behavior."
)


@dataclasses.dataclass(frozen=True)
class Eagerly:
    """Torch's engine has to run a pass. ``note`` is called when it has run it, unless it raised."""

    note: Callable[[], None] = lambda: None


_EAGERLY = Eagerly()


class _WrongGraphError(Exception):
    """A graph that cannot be run at all: torch's engine will say why, in its own words."""


def run_backward(
    tensors: Any,
    grads: Any,
    keep_graph: bool,
    create_graph: bool,
    inputs: Any = (),
    allow_unreachable: bool = False,
    accumulate_grad: bool = False,
) -> Any:
    """One backward pass, where capturing is on. The arguments are those of torch's ``_engine_run_backward``.

    Raises:
        FallbackError: under ``fullgraph=True``, if torch's engine has to run it.
    """
    setting = present()
    if (setting.only_between_segments or create_graph) and _is_compiled(tensors):
        return _EAGERLY
    if _is_own_tracing() or _is_tried_out(tensors):
        return _EAGERLY
    note = functools.partial(fallback, fullgraph=setting.fullgraph)
    try:
        _refuse_where_eager_is_needed()
        if create_graph:
            _refuse_graph_behind(tensors, inputs, accumulate_grad, setting)
        session = session_of(setting)
        session.rest(setting)
        walk = _walk(tensors, grads, keep_graph, inputs, accumulate_grad, create_graph)
        recording = session.recording_for(walk, setting)
    except UnsupportedError as reason:
        note(f"compiled autograd: {reason}")
        return _EAGERLY
    except _WrongGraphError as reason:
        return Eagerly(functools.partial(note, f"compiled autograd: {reason}"))
    results = record(session, walk) if recording is None else _replay(walk, recording)
    return results if accumulate_grad else _requested(results, allow_unreachable)


def _walk(tensors: Any, grads: Any, keep_graph: bool, inputs: Any, accumulate_grad: bool, create_graph: bool) -> Walk:
    """The live graph with its key."""
    try:
        return native.extension.Walk(tensors, grads, keep_graph, inputs, accumulate_grad, create_graph)
    except native.extension.Unsupported as error:
        kind = _WrongGraphError if str(error) in _WRONG else UnsupportedError
        raise kind(str(error)) from error
    except RuntimeError as error:  # a saved tensor was freed, or modified in place: the engine raises where it meets it
        raise _WrongGraphError("saved tensor that cannot be read") from error


def _replay(walk: Walk, recording: Recording) -> Sequence[Any]:
    count("compiled_autograd", "hits")
    results, gave_up = native.extension.replay(walk, recording)
    if gave_up:
        count("compiled_autograd", "finished live")
    return results


def _requested(results: Sequence[Any], allow_unreachable: bool) -> tuple[Any, ...]:
    """The results of ``torch.autograd.grad``, and its error for an input that nothing reached."""
    if not allow_unreachable and any(result is None for result in results):
        raise RuntimeError(_UNUSED.format([result is None for result in results].index(True)))
    return tuple(results)


# ---- what torch's engine has to run


def _is_own_tracing() -> bool:
    """True for a backward pass that gradc itself records."""
    return bool(unsupported_mode()) and any(isinstance(active, Recorder) for active in dispatch_modes())


def _is_tried_out(tensors: Any) -> bool:
    """True for a pass between fake tensors, or a transform's around them: Dynamo looks what it gives."""
    return any(isinstance(tensor, torch.Tensor) and is_fake(without_transforms(tensor)) for tensor in tensors)


def _is_compiled(tensors: Any) -> bool:
    """True if the engine meets compiled segments and leaves only: then it makes fewer calls than a replay."""
    return native.is_built() and native.extension.consists_of_segments(tensors)


def _refuse_where_eager_is_needed() -> None:
    """Raises UnsupportedError if this pass is one that only torch's engine can run."""
    if not native.is_built():
        raise UnsupportedError("no extension")
    if mode := unsupported_mode():
        raise UnsupportedError(mode)
    if is_compiled_autograd_enabled():
        raise UnsupportedError("torch's compiled autograd")


def _refuse_graph_behind(tensors: Any, inputs: Any, accumulate_grad: bool, setting: Setting) -> None:
    """Raises UnsupportedError where it is plain that ``create_graph`` leaves a graph; else the walk finds out.

    A compiler of the user's makes no views as eager's, nor graphs.
    """
    if setting.compiler is not None or accumulate_grad or _leaves_graph(tensors, inputs):
        raise UnsupportedError("create_graph")


def _leaves_graph(tensors: Any, inputs: Any) -> bool:
    try:
        return native.extension.leaves_graph(tensors, inputs or ())
    except RuntimeError:  # a saved tensor that cannot be read: the walk will say so
        return False


# ---- the way in

_entries: list[Any] = []


def is_way_in_torchs() -> bool:
    """True if a pass that begins in ``torch.autograd.backward`` comes here next, and then goes torch's own way."""
    return is_way_into_engine(_entries)


def _left_out() -> Eagerly:
    if is_suspended():
        count("compiled_autograd", "passes of what runs eagerly")
    return _EAGERLY


def _intercepted(original: Any) -> Any:
    """torch's way into its engine, with this one before it: one comparison where not enabled."""

    @functools.wraps(original)
    def entry(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if is_inside_backward():
            native.before_backward_pass_inside_another()
        native.before_backward_pass(tensors, *args)
        results = run_backward(tensors, *args, **kwargs) if present().is_on else _left_out()
        if not isinstance(results, Eagerly):
            return results
        eager_results = original(tensors, *args, **kwargs)
        results.note()
        return eager_results

    _entries.append(entry)
    return entry


PASSES = tell_of_passes_as_in_eager(native.current_autograd_node)
INTERCEPT = Patch(
    "intercept_backward",
    "Every backward pass of torch.autograd is to come through here; and one inside another needs edges that regions hide.",
    (
        Replace(torch.autograd.graph, "_engine_run_backward", _intercepted),
        Replace(torch.autograd, "_engine_run_backward", _intercepted),
    ),
)
