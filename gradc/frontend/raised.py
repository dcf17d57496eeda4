"""A graph that raises: its frame runs again, as it was written, and raises as eager does.

    again_of(facts): -> what to call with the error that a call of the region raised, and what it needs
    with_eagers_error(call, again):  -> the same function, which calls ``again.raised`` so
    if_nothing_was_written(call):    -> the same, for a graph that is not compiled: each run tells whether it can be run again

Dynamo does what Python does in a frame (appends to a list, sets an attribute or a ``.grad``) when the graph has run: one that
raises leaves it undone, and names no line. Where the graph writes into nothing from outside, nothing has happened but draws.
These are taken back, so that the frame can be run: Python does its part, and the error has the user's line. Not where a mode or
a hook has seen the calls already, where the error says nothing about the program, or where the frame is out of reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gradc.ambient import is_watched
from gradc.analysis.facts import Facts
from gradc.errors import GradcError, is_passing
from gradc.ir.program import Program
from gradc.ir.values import Instruction, leaves
from gradc.journal import count
from gradc.torch_private.frames import as_written, calling_frame


class Again(NamedTuple):
    """How a region that raises is run again.

    raised: called with the error and, if the region ``draws``, the state of the CPU's generator before it. None: it is not.
    """

    raised: Callable[[BaseException, torch.Tensor | None], None] | None
    draws: bool = False


def again_of(facts: Facts) -> Again:
    """See the module's docstring."""
    if facts.acts_outside or not all(_is_of_the_cpus_generator(call, facts.tape.program) for call in facts.draws):
        return Again(None)
    return Again(_run_as_written, draws=bool(facts.draws))


def with_eagers_error(call: Callable[..., Any], again: Again) -> Callable[..., Any]:
    """See the module's docstring."""
    raised, draws = again
    if raised is None:
        return call

    def function(*inputs: Any) -> Any:
        before = torch.get_rng_state() if draws else None
        try:
            return call(*inputs)
        except Exception as error:
            told = error
        try:
            raised(told, before)
            raise told
        finally:
            del told  # whose traceback holds this frame

    return function


def if_nothing_was_written(call: Callable[..., Any]) -> Callable[..., Any]:
    """See the module's docstring: no input's version has changed."""

    def function(*inputs: Any) -> Any:
        before = _versions(inputs)

        def raised(error: BaseException, state: torch.Tensor | None) -> None:
            if _versions(inputs) == before:
                _run_as_written(error, state)

        return with_eagers_error(call, Again(raised, draws=True))(*inputs)

    return function


def _versions(inputs: Sequence[Any]) -> list[int]:
    return [value._version for value in inputs if isinstance(value, torch.Tensor) and not value.is_inference()]


def _is_of_the_cpus_generator(call: Instruction, program: Program) -> bool:
    slots = [program.slots[slot] for slot in (*call.reads, *call.outs) if slot is not None]
    has_its_own = any(isinstance(leaf, torch.Generator) for leaf in leaves((call.args, call.kwargs)))
    return not has_its_own and all(slot.meta is None or slot.meta.device.type == "cpu" for slot in slots)


def _run_as_written(error: BaseException, state: torch.Tensor | None) -> None:
    """Raises what eager raises. Returns where it cannot be asked: see the module's docstring."""
    frame = calling_frame() if not (isinstance(error, GradcError) or is_passing(error) or is_watched()) else None
    if frame is not None and (run := as_written(frame)) is not None:
        count("stats", "run_again_after_error")
        if state is not None:
            torch.set_rng_state(state)
        run()
