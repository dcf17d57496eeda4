"""A graph that raises: its frame runs again, as it was written, and raises as eager does.

    eager_of(facts): -> what to call with the error that a call of the region raised; None where it cannot be run again
    with_eagers_error(call, raised): -> the same function, which calls ``raised`` so
    if_nothing_was_written(call):    -> the same, for a graph that is not compiled: each run tells whether it can be run again

Dynamo does what Python does in a frame (appends to a list, sets an attribute or a ``.grad``) when the graph has run: one that
raises leaves it undone, and names no line. Where the graph writes into nothing from outside and draws nothing, nothing has
happened yet, so that the frame can be run: Python does its part, and the error has the user's line. Not where a mode or a hook
has seen the calls already, where the error says nothing about the program, or where the frame is out of reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc.ambient import is_watched
from gradc.analysis.facts import Facts
from gradc.errors import GradcError, is_passing
from gradc.journal import count
from gradc.torch_private.frames import as_written, calling_frame

Raised = Callable[[BaseException], None]


def eager_of(facts: Facts) -> Raised | None:
    """See the module's docstring."""
    return None if facts.acts_outside else _run_as_written


def with_eagers_error(call: Callable[..., Any], raised: Raised) -> Callable[..., Any]:
    """See the module's docstring."""

    def function(*inputs: Any) -> Any:
        try:
            return call(*inputs)
        except Exception as error:
            told = error
        try:
            raised(told)
            raise told
        finally:
            del told  # whose traceback holds this frame

    return function


def if_nothing_was_written(call: Callable[..., Any]) -> Callable[..., Any]:
    """See the module's docstring: neither an input's version has changed nor the state of the generator."""

    def function(*inputs: Any) -> Any:
        before = _state(inputs)

        def raised(error: BaseException) -> None:
            if _state(inputs) == before:
                _run_as_written(error)

        return with_eagers_error(call, raised)(*inputs)

    return function


def _state(inputs: Sequence[Any]) -> tuple[list[int], bytes]:
    written = [value for value in inputs if isinstance(value, torch.Tensor) and not value.is_inference()]
    return [value._version for value in written], torch.get_rng_state().numpy().tobytes()


def _run_as_written(error: BaseException) -> None:
    """Raises what eager raises. Returns where it cannot be asked: see the module's docstring."""
    frame = calling_frame() if not (isinstance(error, GradcError) or is_passing(error) or is_watched()) else None
    if frame is not None and (run := as_written(frame)) is not None:
        count("stats", "run_again_after_error")
        run()
