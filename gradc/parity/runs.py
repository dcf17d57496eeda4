"""The runs of a step that are compared: in eager, compiled, and recorded, each on fresh copies and from the same state.

Runs(redirection, step, arguments, number of steps).eagerly() -> what was seen after each step
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from gradc.parity.against import Compile, Redirection
from gradc.parity.differences import Value
from gradc.parity.observe import copies, differentiate, holders_of, observe, trained
from gradc.parity.recording import Call, Recorder
from gradc.parity.state import held_by, restoring, stateful_in
from gradc.torch_private.running_twice import nothing_compiled

Seen = list[dict[str, Value]]  # after each step, every value by its name


class Runs:
    """The runs of a step, each on fresh copies and from the same state."""

    def __init__(self, redirection: Redirection, step: Callable[..., Any], args: tuple[Any, ...], num_steps: int) -> None:
        self._redirection, self._step, self._args, self._num_steps = redirection, step, args, num_steps
        self._held = held_by(step)

    def eagerly(self) -> Seen:
        with self._mode(is_eager=True) as prepare:
            return self._observed(prepare)

    def compiled(self) -> Seen:
        with self._mode(is_eager=False) as prepare:
            return self._observed(prepare)

    def recorded(self, number: int, *, is_eager: bool) -> tuple[list[Call], dict[str, Value]]:
        """The operations of the step ``number``, and what was seen after it. What is compiled was, before."""
        target, inputs = copies(self._step, self._args)
        holders = holders_of(target, inputs, self._held)
        with self._mode(is_eager=is_eager) as prepare, restoring(stateful_in(holders)):
            run = prepare(target)
            with restoring(stateful_in(holders)):
                for _ in range(0 if is_eager else number):
                    _one_step(run, inputs, holders)
            for _ in range(number - 1):
                _one_step(run, inputs, holders)
            with Recorder() as recorder:
                result = _run_one(run, inputs, holders)
            return recorder.calls, observe(result, holders)

    @contextlib.contextmanager
    def _mode(self, *, is_eager: bool) -> Iterator[Compile]:
        """Not compiled as a whole where the step, in eager, was seen to say itself what is compiled."""
        self._redirection.is_eager = is_eager
        is_whole = not is_eager and not self._redirection.num_calls
        with nothing_compiled() if is_eager else contextlib.nullcontext():
            yield self._redirection.compile if is_whole else lambda target: target

    def _observed(self, prepare: Compile) -> Seen:
        target, inputs = copies(self._step, self._args)
        holders = holders_of(target, inputs, self._held)
        with restoring(self._held.values()):
            run = prepare(target)
            return [_one_step(run, inputs, holders) for _ in range(self._num_steps)]


def _one_step(run: Callable[..., Any], inputs: tuple[Any, ...], holders: dict[str, Any]) -> dict[str, Value]:
    return observe(_run_one(run, inputs, holders), holders)


def _run_one(run: Callable[..., Any], inputs: tuple[Any, ...], holders: dict[str, Any]) -> Any:
    result = run(*inputs)
    differentiate(result, trained(holders))
    return result
