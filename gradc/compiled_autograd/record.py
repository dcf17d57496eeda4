"""Record one backward pass: run it live, once, and keep what was seen for these sizes, and if it can be for all.

record: (Session, Walk) -> results
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradc import garbage
from gradc.capture.capture import capture
from gradc.capture.recording import Captured
from gradc.compiled_autograd import cache_misses as logs
from gradc.compiled_autograd import graph_module
from gradc.compiled_autograd.sessions import MAX_REFUSALS, Session
from gradc.errors import UnsupportedError
from gradc.journal import count
from gradc.policy.budget import paid
from gradc.replay.spec import recording_spec
from gradc.symbolic.generalise import General, generalise
from gradc.symbolic.same_calls import Trace
from gradc.symbolic.terms import fit, fit_sizes
from gradc.torch_private.modes import without_functions_of_subclasses
from gradc.torch_private.quiet import quiet

if TYPE_CHECKING:
    from gradc._C import Walk


@dataclasses.dataclass(frozen=True)
class _Before:
    """What the capture changes or uses up: where tensors began, and a trace for all sizes, if sizes are to vary."""

    offsets: list[int]
    general: General | None


def record(session: Session, walk: Walk) -> Sequence[Any]:
    """Run the pass live, keep what was recorded, and return its results. One that cannot be captured is kept as such."""
    with paid(session.pay), garbage.set_aside(), quiet():
        return _record(session, walk)


def _record(session: Session, walk: Walk) -> Sequence[Any]:
    with without_functions_of_subclasses():  # the parameters of torch's per-sample gradients refuse any call
        logs.miss(walk, is_static=session.dynamic is False)
        before = _Before([int(tensor.storage_offset()) for tensor in walk.tensors], _general(session, walk))
    results, captured, report = capture(walk)
    count("compiled_autograd", "captures")
    count("stats", "unique_graphs")
    try:
        _keep(session, walk, captured, before)
        graph_module.remember(report)
        logs.captured(graph_module.last_graph)
    except UnsupportedError as error:
        logs.not_captured(str(error))
        session.keep_uncapturable(walk)
    return results


@torch.compiler.disable  # inside of a compiled step Dynamo would try each function of sympy's that tracing calls
def _general(session: Session, walk: Walk) -> General | None:
    """A trace for all sizes, where sizes have changed or are said to be dynamic."""
    met, dynamic = session.met_of(walk), session.dynamic
    if dynamic is False or (met is None and not dynamic) or (met and met.num_refusals >= MAX_REFUSALS):
        return None
    try:
        if met is None:
            return generalise(walk, fit_sizes(walk), ())
        return generalise(walk, fit([*met.points, walk.numbers]), met.boundaries)
    except UnsupportedError as error:
        _refuse(session, walk, str(error))
        return None


@torch.compiler.disable
def _keep(session: Session, walk: Walk, captured: Captured, before: _Before) -> None:
    """Keep a recording for these sizes, one for all if there is, and what is worth knowing when other sizes come.

    Raises:
        UnsupportedError: if the pass cannot be replayed.
    """
    if captured.failure:
        raise UnsupportedError(captured.failure)
    session.keep(walk, recording_spec(captured, session.lower_for(walk)), before.offsets)
    if before.general is not None:
        _keep_general(session, walk, captured, before.general, before.offsets)
    session.note_sizes(walk, captured.boundaries)


def _keep_general(session: Session, walk: Walk, captured: Captured, general: General, offsets: list[int]) -> None:
    """Keep a trace for all sizes, if at these sizes it is what has just been captured."""
    values = general.fit.values_in(walk.numbers)
    if not general.agrees(Trace.of(captured), values):
        return _refuse(session, walk, "trace that differs from the capture")
    spec = recording_spec(general.captured, session.lower_for(walk), general.fit, general.names)
    session.keep_general(walk, general, spec, values, offsets)
    count("compiled_autograd", "made dynamic")


def _refuse(session: Session, walk: Walk, reason: str) -> None:
    logs.not_dynamic(reason)
    count("compiled_autograd", "not made dynamic")
    session.note_refusal(walk)
