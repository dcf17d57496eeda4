"""A graph that raises: its frame runs again, as it was written, and raises as eager does, or ends the error as eager does.

    again_of(facts, is_handled): -> what to call with the error that a call of the region raised, and what it needs
    with_eagers_error(call, again): -> the same function, which calls ``again.raised`` so
    if_nothing_was_written(call, is_handled): -> the same, for a graph that is not compiled: each run tells if it can run again
    as_written_if_watched(call, where): -> the same, which runs the frame as it was written where hooks or a mode see each call
    ``is_handled``: whether a handler of the user's stands around a call of the graph, so that the frame may return

Dynamo does what Python does in a frame (appends to a list, sets an attribute or a ``.grad``) when the graph has run: one that
raises leaves it undone, and names no line. Where the graph writes into nothing from outside, nothing has happened but draws.
These are taken back, so that the frame can be run: Python does its part, and the error has the user's line. Not where a mode or
a hook has seen the calls already, where the error says nothing about the program, or where the frame is out of reach.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gradc.ambient import is_watched
from gradc.analysis.facts import Facts
from gradc.errors import GradcError, is_passing
from gradc.ir.program import Program
from gradc.ir.values import Instruction, leaves
from gradc.journal import count, fallback
from gradc.torch_private.dynamo_patches.handlers import Returned
from gradc.torch_private.frames import frame_as_written


class Again(NamedTuple):
    """How a region that raises is run again.

    raised: called with the error and, if the region ``draws``, the state of the CPU's generator before it. It raises another,
        gives what stands in place of the region's results, or gives None: the error is raised. None: it is not called.
    """

    raised: Callable[[BaseException, torch.Tensor | None], Returned | None] | None
    draws: bool = False


def again_of(facts: Facts, is_handled: bool) -> Again:
    """See the module's docstring."""
    if facts.acts_outside or not all(_is_of_the_cpus_generator(call, facts.tape.program) for call in facts.draws):
        return Again(None)
    return Again(functools.partial(_run_as_written, is_handled=is_handled), draws=bool(facts.draws))


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
            returned = raised(told, before)
            if returned is None:
                raise told
            return returned
        finally:
            del told  # whose traceback holds this frame

    return function


def if_nothing_was_written(call: Callable[..., Any], is_handled: bool) -> Callable[..., Any]:
    """See the module's docstring: no input's version has changed."""

    def function(*inputs: Any) -> Any:
        before = _versions(inputs)

        def raised(error: BaseException, state: torch.Tensor | None) -> Returned | None:
            return _run_as_written(error, state, is_handled) if _versions(inputs) == before else None

        return with_eagers_error(call, Again(raised, draws=True))(*inputs)

    return function


def as_written_if_watched(call: Callable[..., Any], where: str) -> Callable[..., Any]:
    """The same, for a graph whose error a handler may end: what sees its calls sees them once, as the frame makes them."""

    def function(*inputs: Any) -> Any:
        run = frame_as_written() if is_watched() else None
        if run is None:
            return call(*inputs)
        fallback("op that may raise inside of a try, and hooks or a mode", where=where)
        return Returned(run())

    return torch.compiler.disable(function)


def _versions(inputs: Sequence[Any]) -> list[int]:
    return [value._version for value in inputs if isinstance(value, torch.Tensor) and not value.is_inference()]


def _is_of_the_cpus_generator(call: Instruction, program: Program) -> bool:
    slots = [program.slots[slot] for slot in (*call.reads, *call.outs) if slot is not None]
    has_its_own = any(isinstance(leaf, torch.Generator) for leaf in leaves((call.args, call.kwargs)))
    return not has_its_own and all(slot.meta is None or slot.meta.device.type == "cpu" for slot in slots)


def _run_as_written(error: BaseException, state: torch.Tensor | None, is_handled: bool) -> Returned | None:
    """Raises what eager raises, or gives what the frame returns where its handler ended the error.

    None where it cannot be asked: see the module's docstring.
    """
    run = None if isinstance(error, GradcError) or is_passing(error) or is_watched() else frame_as_written()
    if run is None:
        return None
    count("stats", "run_again_after_error")
    if state is not None:
        torch.set_rng_state(state)
    value = run()
    if not is_handled:
        return None
    fallback("error that a try or with has ended")
    return Returned(value)
