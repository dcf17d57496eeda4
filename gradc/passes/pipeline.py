"""Which passes a recorded Program goes through, in which order, and why each stands where it stands.

    run: (pipeline, Program) -> Program

A pass is a function Program -> Program that keeps values, mutations and draws of random numbers. Under GRADC_VERIFY=1
whatever a pass changes is verified.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

from gradc.ir.program import Program
from gradc.ir.verify import checked
from gradc.passes.cse import cse
from gradc.passes.dce import dce, refuse_phantoms
from gradc.passes.sums import add_in_place, add_up


@dataclasses.dataclass(frozen=True)
class Pass:
    """One step of a pipeline. ``is_checkable`` is False where what it makes may be refused by a later pass."""

    name: str
    function: Callable[[Program], Program]
    why: str
    is_checkable: bool = True


DROP_VIEWS = Pass(
    "drop_views",
    functools.partial(dce, is_backward=False),
    "Views and handles that nobody uses go first, so that they are no reason to refuse; kernels stay, since they may raise.",
    is_checkable=False,
)
DROP_DEAD = Pass(
    "dce",
    functools.partial(dce, is_backward=True),
    "What only fed gradients that nobody asked for goes first, so that it is no reason to refuse, and holds up no sum.",
    is_checkable=False,
)
REFUSE_PHANTOMS = Pass(
    "refuse_phantoms", refuse_phantoms, "What is left runs: from here on each value that a call reads can be had."
)
ADD_IN_PLACE = Pass("add_in_place", add_in_place, "Last, when it is settled who reads an addend, and after which call.")

PACKING = (DROP_VIEWS, REFUSE_PHANTOMS)  # nothing is merged: hooks see each tensor that is saved
PIECE = (DROP_DEAD,)


def _merging(apart: Iterable[int]) -> Pass:
    merge = functools.partial(cse, apart=tuple(apart))
    return Pass("cse", merge, "Last, when it is settled which calls run.")


def forward(apart: Iterable[int], *, is_derivative: bool) -> tuple[Pass, ...]:
    """The pipeline of a region's forward. ``apart`` are slots of tensors that gradc is not alone with when it has run."""
    return (DROP_DEAD if is_derivative else DROP_VIEWS, REFUSE_PHANTOMS, _merging(apart))


def joined(apart: Iterable[int]) -> tuple[Pass, ...]:
    """The pipeline of a forward and its backward in one Program, each of which had its own. ``apart``: see ``forward``."""
    return DROP_VIEWS, _merging(apart)


def backward(groups: Iterable[tuple[int, ...]]) -> tuple[Pass, ...]:
    """The pipeline of a backward whose outputs in each of ``groups`` are to be added up."""
    add = functools.partial(add_up, groups=groups)
    sums = Pass("add_up", add, "After dce, which knows the outputs one by one; before the sums are written over addends.")
    return (DROP_DEAD, REFUSE_PHANTOMS, sums, ADD_IN_PLACE)


def run(pipeline: Sequence[Pass], program: Program, name: str = "") -> Program:
    """The Program that the pipeline makes of ``program``. ``name`` is whose it is, for errors.

    Raises:
        UnsupportedError: if the Program could not run.
        InternalError: if a pass made what is not legal; found only when asked for.
    """
    known = None
    for step in pipeline:
        program = step.function(program)
        if step.is_checkable and program is not known:
            known = checked(program, f"{name}, {step.name}" if name else step.name)
    return program
