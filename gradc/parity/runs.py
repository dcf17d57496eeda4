"""The runs of a step that are compared: in eager, compiled, and recorded, each on fresh copies and from the same state.

Runs(redirection, step, arguments, number of steps).eagerly() -> what was seen after each step
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from gradc.parity.against import Compile, Redirection
from gradc.parity.differences import Value
from gradc.parity.hooks import carry_over, hearing
from gradc.parity.observe import copies, differentiate, holders_of, observe, trained
from gradc.parity.recording import Call, Recorder
from gradc.parity.stages import Stages, in_words
from gradc.parity.state import held_by, restoring, stateful_in
from gradc.torch_private.reexecution import nothing_compiled

Seen = list[dict[str, Value]]  # after each step, every value by its name


class Runs:
    """The runs of a step, each on fresh copies and from the same state."""

    def __init__(self, redirection: Redirection, step: Callable[..., Any], args: tuple[Any, ...], num_steps: int) -> None:
        self._redirection, self._step, self._args, self._num_steps = redirection, step, args, num_steps
        self.stages = Stages()
        self._held = held_by(step)

    def eagerly(self) -> Seen:
        return self._observed(is_eager=True)

    def compiled(self) -> Seen:
        return self._observed(is_eager=False)

    def _observed(self, *, is_eager: bool) -> Seen:
        with self.stages.run(in_words(is_eager)), self.prepared(is_eager=is_eager) as prepared:
            return [prepared.observed() for _ in range(self._num_steps)]

    def recorded(self, number: int, *, is_eager: bool) -> tuple[list[Call], dict[str, Value]]:
        """The operations of the step ``number``, and what was seen after it. What is compiled was, before."""
        with self.stages.run(f"recorded {in_words(is_eager)}"), self.prepared(is_eager=is_eager) as prepared:
            with prepared.restoring():
                for _ in range(0 if is_eager else number):
                    prepared.observed()
            for _ in range(number - 1):
                prepared.observed()
            recorder = Recorder()
            seen = prepared.observed(recorder)
            return recorder.calls, seen

    @contextlib.contextmanager
    def prepared(self, *, is_eager: bool) -> Iterator[Prepared]:
        """On copies of its own, and from the same state as each other run; what it changes is put back."""
        target, inputs = copies(self._step, self._args, carry_over)
        holders = holders_of(target, inputs, self._held)
        with self._mode(is_eager=is_eager) as prepare, restoring(self._held.values()):
            yield Prepared(prepare(target), inputs, holders)

    @contextlib.contextmanager
    def beside(self) -> Iterator[Prepared]:
        """The step as it is, on copies of its own, while a compiled one is open; it runs in eager inside of ``as_it_is``."""
        target, inputs = copies(self._step, self._args, carry_over)
        with restoring(self._held.values()):
            yield Prepared(target, inputs, holders_of(target, inputs, self._held))

    @contextlib.contextmanager
    def as_it_is(self) -> Iterator[None]:
        """What runs inside runs in eager, also what the step compiles itself."""
        was, self._redirection.is_eager = self._redirection.is_eager, True
        try:
            with nothing_compiled():
                yield
        finally:
            self._redirection.is_eager = was

    @contextlib.contextmanager
    def _mode(self, *, is_eager: bool) -> Iterator[Compile]:
        """Not compiled as a whole where the step, in eager, was seen to say itself what is compiled."""
        self._redirection.is_eager = is_eager
        is_whole = not is_eager and not self._redirection.num_calls
        with nothing_compiled() if is_eager else contextlib.nullcontext():
            yield self._redirection.compile if is_whole else lambda target: target


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A step that is ready to run, in eager or compiled: what runs it, its arguments, and what it works on, by name."""

    run: Callable[..., Any]
    inputs: tuple[Any, ...]
    holders: dict[str, Any]

    def step(self) -> Any:
        """The step once, with the backward of what it leaves over."""
        result = self.run(*self.inputs)
        differentiate(result, trained(self.holders))
        return result

    def once(self, has_rest: bool) -> None:
        """The step once, with its backward if ``has_rest``; unlike ``step``, it copies no gradients."""
        result = self.run(*self.inputs)
        if has_rest:
            differentiate(result)

    def leaves_graph(self) -> bool:
        """The step once; whether backward is left to whoever calls it."""
        return differentiate(self.run(*self.inputs), trained(self.holders))

    def observed(self, around: contextlib.AbstractContextManager[Any] | None = None) -> dict[str, Value]:
        """The step once, with ``around`` around it, and what is seen of its hooks and after it."""
        with hearing(self.holders) as heard, around or contextlib.nullcontext():
            result = self.step()
        return observe(result, self.holders) | heard.seen()

    def restoring(self) -> contextlib.AbstractContextManager[None]:
        """What runs inside is as if it had not."""
        return restoring(stateful_in(self.holders))
