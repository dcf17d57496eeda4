"""Run a Program natively: the same kernels in the same order as the interpreter, without Python between them.

    lower:   Program -> (list of inputs -> list of outputs)     the list of inputs is emptied
    is_plan: (what lower made) -> whether C++ can run it by itself

Runs below autograd, in any thread, without the GIL. Where the extension was not built, the interpreter serves, and the
first call says so once.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from gradc import native
from gradc.config import config
from gradc.executor.core import interpret
from gradc.executor.core.plan import PlanSpec, plan_spec
from gradc.ir.at_sizes import Seen, at_sizes
from gradc.ir.program import Program
from gradc.journal import count, log
from gradc.policy.budget import paid
from gradc.torch_private.lent_memory import note_streams

Runner = Callable[[list[Any]], list[Any]]


def lower(program: Program) -> Runner:
    """Make ``program`` ready to run. Thread-safe and re-entrant, as the interpreter is.

    Raises:
        UnsupportedError: if a call has no native form, such as a higher-order operator. The interpreter has none such.
        VersionError: if the extension was built for another torch.
    """
    if not native.is_built():
        _warn_once()
        return interpret.lower(program)
    _count_device_graphs()
    return native.extension.Plan(_spec(program), config.device_graphs, functools.partial(_plan_at_sizes, program))


def _spec(program: Program) -> PlanSpec:
    return plan_spec(program, native.extension.out_variants())


def _plan_at_sizes(program: Program, values: list[int], layouts: list[Seen | None]) -> Any:
    """The static plan for some sizes: see gradc.ir.at_sizes."""
    count("executor", "plans for sizes that came back")
    with paid(lambda seconds: None):  # from the credit of such plans
        return native.extension.Plan(_spec(at_sizes(program, values, layouts)))


def lower_dispatched(program: Program) -> Runner:
    """The same above autograd, in grad mode: results are views, and have histories, where those of eager's calls do.

    Not to be called without the extension.

    Raises:
        UnsupportedError: if a call has no native form.
    """
    return native.extension.Plan(plan_spec(program, is_dispatched=True))


def is_plan(runner: Runner) -> bool:
    """True if ``runner`` is a native plan, which C++ can run by itself."""
    return native.is_built() and isinstance(runner, native.extension.Plan)


@functools.cache
def _count_device_graphs() -> None:
    """From the first plan on, what becomes of plans is counted."""
    native.extension.tell_of_device_graphs(_note_device_graph)


def _note_device_graph(what: str, plan: str) -> None:
    if what == "recorded":
        _note_streams()
    count("device_graphs", what)
    log("perf", f"{plan} as a graph of its device: {what}")


@functools.cache
def _note_streams() -> None:
    note_streams(native.extension.keep_lent).apply()


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        "gradc: the C++ extension was not built, so Programs run in Python: right, but slowly. "
        "With a C++ compiler installed, install gradc again with: pip install --no-build-isolation gradc",
        stacklevel=3,
    )
