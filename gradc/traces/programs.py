"""The programs that gradc makes of a function, as values that print and save themselves.

    programs: function or module -> (arguments -> CapturedPrograms)

The function runs once with its backward, as ``gradc.explain`` runs it, on copies of its arguments and of a module; twice, if
inputs are to be kept and compiled autograd captured a pass.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from gradc.backends import DEFAULT_BACKEND, Lower, Runner, watched
from gradc.frontend.api import compile
from gradc.frontend.compiled_module import CompiledModule
from gradc.frontend.control import reset
from gradc.ir.program import Program
from gradc.parity.observe import copies, differentiate
from gradc.torch_private.dynamo import is_compiled
from gradc.traces.captured import CapturedProgram
from gradc.traces.collect import collecting


def programs(
    function: Callable[..., Any], *, backend: str = DEFAULT_BACKEND, with_inputs: bool = False
) -> Callable[..., tuple[CapturedProgram, ...]]:
    """Compile ``function``, run it once with its backward, and return the programs that were captured.

        for program in gradc.programs(model)(x):
            print(program)                       # the calls, each with the user's line
            program.save(f"{program.name}.py")   # the same as a file that runs without gradc

    Forgets what was compiled before (``gradc.reset``), so that everything is seen.

    Arguments:
        function: a function or a module, or what gradc.compile made of one. It may be a whole step: backward runs from those
            results only that still have a graph.
        backend: for a function that is not compiled yet.
        with_inputs: keep what each program is called with first, so that what is saved runs on that. Each is copied, which
            takes memory, and the run takes longer; programs and results stay the same.

    Returns:
        A function of the arguments, which are copied, as a module is, that returns the programs in the order in which they
        were captured. Of a backward pass that compiled autograd captures, the pieces between nodes that run live are programs;
        with ``create_graph=True`` it has none (``compiled_autograd.last_graph`` shows the whole pass).

    Raises:
        ConfigError: for an unknown backend, or an argument that cannot be copied.
    """
    compiled = compiled_once(function, backend)

    def run(*args: Any) -> tuple[CapturedProgram, ...]:
        reset()
        found: list[CapturedProgram] = []
        inputs = _Inputs()
        with collecting(found.append), watched(inputs.watch) if with_inputs else contextlib.nullcontext():
            _run_on_copies(compiled, args)
            num_found = len(found)
            if with_inputs and any(inputs.of(program.program) is None for program in found):
                _run_on_copies(compiled, args)  # a backward pass runs live when it is captured, and its pieces after that
        if with_inputs:
            reset()  # what was compiled meanwhile runs behind Python that looks at its inputs
        return tuple(dataclasses.replace(program, inputs=inputs.of(program.program)) for program in found[:num_found])

    return run


def compiled_once(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """The function compiled, or itself if it is."""
    is_done = is_compiled(function) or isinstance(function, CompiledModule)
    return function if is_done else compile(function, backend=backend)


class _Inputs:
    """Copies of what Programs are called with first, as they lie in memory."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Any, ...]] = {}

    def watch(self, lower: Lower) -> Lower:
        """A backend, watched: what it makes run is looked at as it is called."""

        def lowered(program: Program) -> Runner:
            return functools.partial(self._look_and_run, program, lower(program))

        return lowered

    def _look_and_run(self, program: Program, run: Runner, inputs: list[Any]) -> list[Any]:
        if id(program) not in self._of:
            self._of[id(program)] = tuple(_copied(inputs))
        return run(inputs)

    def of(self, program: Program) -> tuple[Any, ...] | None:
        return self._of.get(id(program))


def _copied(inputs: list[Any]) -> list[Any]:
    """In memory of their own; those that share memory still share it."""
    with torch.no_grad():
        return copy.deepcopy([value.detach() if isinstance(value, torch.Tensor) else value for value in inputs])


def _run_on_copies(compiled: Callable[..., Any], args: tuple[Any, ...]) -> None:
    step, given = copies(compiled, args)
    with torch.random.fork_rng():
        differentiate(step(*given))
