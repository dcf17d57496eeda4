"""Run a training script as it is, with the models that its optimizers train, and their steps, compiled.

    run: (path, words, backend) -> Outcome

The first steps run as they are written: then it is known which models the optimizers train, and how long a step takes in
eager. From there on each model's call is compiled, and each optimizer's step is native. Results are the same bit for bit, so
one step may run eagerly and the next compiled. What the script gives to torch.compile is compiled by gradc, from there on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradc import environment
from gradc.errors import ConfigError
from gradc.journal import Event, Fallback, Uncompiled, num_compiled, telling
from gradc.optim import compile_optimizer
from gradc.parity.against import GRADC, Redirection, compiler_of, redirected
from gradc.parity.script import as_main, models_of
from gradc.scripts.summary import Outcome
from gradc.torch_private.dynamo import in_a_frame
from gradc.torch_private.reexecution import nothing_compiled

_FEWEST_EAGER, _EAGER_SECONDS = 5, 0.5  # steps, after the first, that run in eager: as many, or for as long
_MOST_EAGER = 50
_WATCHED = 200  # compiled steps that are measured and listened to; then nothing of ours is in the way


class Enough(BaseException):
    """Ends the script."""


def run(path: Path, words: Sequence[str], backend: str | None = None) -> Outcome:
    """The script to its end, as ``python path words`` runs it. What it raises comes through."""
    with redirected(compiler_of(GRADC, backend)) as redirection:
        training, exit_code = Training(redirection), None
        with as_main(path, words), training.watching():
            try:
                runpy.run_path(str(path), run_name="__main__")
            except SystemExit as end:
                exit_code = end.code
        return training.outcome(exit_code)


class Training:
    """The steps that a script's optimizers make: the first are timed in eager, then what is trained is compiled.

    Arguments:
        redirection: has the compiler.
        num_eager: how many steps run in eager, after the first; None: until that gives a time.
        most_steps: after how many compiled ones the script is ended; None: not at all.
    """

    def __init__(self, redirection: Redirection, num_eager: int | None = None, most_steps: int | None = None) -> None:
        self._redirection, self._num_eager, self._most_steps = redirection, num_eager, most_steps
        self.eager: list[float] = []
        self.compiled: list[float] = []
        self.compiling: list[float] = []
        self.num_steps = 0
        self.events: list[Event] = []
        self.num_first = 0  # events of the first compiled step
        self._optimizers: list[Optimizer] = []
        self._names: list[str] = []
        self._is_compiled = self._is_over = False
        self._first_known = 0.0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self._begun = self._last = time.perf_counter()
        self._num_compiled = num_compiled()
        handle = register_optimizer_step_post_hook(self._after_step)
        try:
            with contextlib.ExitStack() as self._stack, contextlib.ExitStack() as self._eagerly:
                self._stack.callback(handle.remove)
                self._stack.enter_context(telling(_Listener(self.events)))
                self._eagerly.enter_context(nothing_compiled())
                self._redirection.is_eager = False  # the stance sees to that
                yield
        finally:
            self._seconds = time.perf_counter() - self._begun

    def outcome(self, exit_code: str | int | None) -> Outcome:
        met = dict.fromkeys(event.what for event in self.events if isinstance(event.what, Fallback | Uncompiled))
        return Outcome(
            num_steps=self.num_steps,
            seconds=self._seconds,
            eager=tuple(self.eager),
            compiled=tuple(self.compiled),
            compile_seconds=sum(self.compiling),
            names=tuple(self._names),
            left_out=tuple(met),
            exit_code=exit_code,
            doubt=environment.busyness(_num_processes()),
        )

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not any(optimizer is each for each in self._optimizers):
            self._optimizers.append(optimizer)
            if self._is_compiled:
                self._compile(optimizer)
        if optimizer is not self._optimizers[0]:
            return
        self.num_steps += 1
        now, last = time.perf_counter(), self._last
        if self.num_steps > 1:
            self._note(now - last)
        else:
            self._first_known = now
        if not self._is_compiled and self._is_known(now):
            self._begin()
        self._last = time.perf_counter()

    def _note(self, seconds: float) -> None:
        """A step took so long; one in which something was compiled is told apart."""
        if not self._is_compiled:
            self.eager.append(seconds)
            return
        was, self._num_compiled = self._num_compiled, num_compiled()
        (self.compiled if was == self._num_compiled else self.compiling).append(seconds)
        num_steps = len(self.compiled) + len(self.compiling)
        if num_steps == 1:
            self.num_first = len(self.events)
        if num_steps == self._most_steps:
            raise Enough
        if num_steps == _WATCHED:
            self._stack.close()

    def _is_known(self, now: float) -> bool:
        """Whether it is known how long a step takes in eager."""
        number = len(self.eager)
        if self._num_eager is not None:
            return number >= self._num_eager
        is_long = now - self._first_known > _EAGER_SECONDS
        return number >= _MOST_EAGER or (number >= _FEWEST_EAGER and is_long)

    def _begin(self) -> None:
        self._is_compiled = True
        self._eagerly.close()
        for optimizer in self._optimizers:
            self._compile(optimizer)
        self._num_compiled = num_compiled()

    def _compile(self, optimizer: Optimizer) -> None:
        for model in map(_inside_wrappers, models_of(optimizer)):
            if self._redirection.num_calls:
                self._names.append("what the script gives to torch.compile")
            elif model._compiled_call_impl is None:
                # Copies and pickles of the module leave this attribute out, and run as they are written.
                model._compiled_call_impl = self._redirection.compile(in_a_frame(model._call_impl))
                self._names.append(type(model).__name__)
        with contextlib.suppress(ConfigError):  # one that is not torch's stays as it is
            self._names.append(type(compile_optimizer(optimizer)).__name__)


def _inside_wrappers(model: nn.Module) -> nn.Module:
    """The user's module in those of DistributedDataParallel and its kin, which call it."""
    while type(model).__module__.startswith("torch.nn.parallel"):
        model = model.module  # type: ignore[assignment]
    return model


class _Listener:
    """Keeps what happens, each once: what runs eagerly at each step is told at each step."""

    def __init__(self, events: list[Event]) -> None:
        self._events, self._known = events, set[Any]()

    def append(self, event: Event) -> None:
        if event.what not in self._known:
            self._known.add(event.what)
            self._events.append(event)


def _num_processes() -> int:
    """That a launcher started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_told() -> bool:
    """True in one of the processes that a launcher starts."""
    return os.environ.get("RANK", "0") == "0"


@dataclasses.dataclass(frozen=True)
class ModelCall:
    """One call of a model, as a script makes it; ``has_autocast`` as it was on the CPU, with its ``dtype``."""

    model: nn.Module
    args: tuple[Any, ...]
    has_autocast: bool
    dtype: torch.dtype

    def surroundings(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast("cpu", dtype=self.dtype, enabled=self.has_autocast)


def call_of(path: Path, words: Sequence[str]) -> ModelCall:
    """The first call, after the first step, of a model that the script trains. What it prints goes to stderr.

    Raises:
        ConfigError: if no optimizer of the script makes a step, or no model is called after it; or if the call has arguments
            that go by keyword alone.
    """
    found: list[ModelCall] = []

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for model in map(_inside_wrappers, models_of(optimizer)):
            model._compiled_call_impl = functools.partial(_keep, found, model)

    handle = register_optimizer_step_post_hook(after_step)
    try:
        with as_main(path, words), contextlib.redirect_stdout(sys.stderr), contextlib.suppress(Enough):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        handle.remove()
    if not found:
        raise ConfigError(f"gradc: {path} calls no model after the first step of an optimizer, so there is nothing to look at.")
    return found[0]


def _keep(found: list[ModelCall], model: nn.Module, *args: Any, **kwargs: Any) -> None:
    model._compiled_call_impl = None
    given = inspect.signature(model.forward).bind(*args, **kwargs)
    if given.kwargs:
        name = type(model).__name__
        raise ConfigError(f"gradc: {name} takes {', '.join(given.kwargs)} by keyword alone. Name a step, FILE.py:STEP.")
    found.append(ModelCall(model, given.args, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
    raise Enough


@dataclasses.dataclass(frozen=True)
class Heard:
    """What was told while the first steps of a script ran compiled; ``num_first``: of these, at the first."""

    events: tuple[Event, ...]
    num_first: int


def heard(path: Path, words: Sequence[str], backend: str | None, num_steps: int) -> Heard:
    """Run the script until ``num_steps`` of its steps ran compiled. What it prints goes to stderr.

    Raises:
        ConfigError: if no optimizer of it makes two steps.
    """
    with redirected(compiler_of(GRADC, backend)) as redirection:
        training = Training(redirection, num_eager=0, most_steps=num_steps)
        with as_main(path, words), training.watching(), contextlib.redirect_stdout(sys.stderr), contextlib.suppress(Enough):
            runpy.run_path(str(path), run_name="__main__")
    if training.num_steps < 2:
        raise ConfigError(f"gradc: no optimizer of {path} makes two steps, so nothing of it runs compiled.")
    return Heard(tuple(training.events), training.num_first)
