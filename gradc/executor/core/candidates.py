"""What ``gradc._C.Candidate`` is made from: code that was compiled for a Program, as another way to run its plan.

The code makes new tensors. What else a call of the Program does is told here, and done in C++ (executor/core/csrc/candidate.h).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch

from gradc.ir.program import Program


class Layout(NamedTuple):
    """How a tensor on the CPU lies in memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


Input = Layout | int | None


@dataclasses.dataclass(frozen=True)
class CandidateSpec:
    """Code for one layout of the inputs.

    Attributes:
        path: of the shared library.
        num_threads: of torch's, for which it was compiled.
        inputs: the layouts of the tensors, and the values of all else.
        outputs: how each comes about: ("made", number of the code's result), ("input", its number), ("again", number of the
            output), ("number", its value), or ("none", 0).
        written: inputs that the code writes into.
        counted: (input, how often eager counts its version up); the statistics of a batch norm are written, but not counted.
        views: (output, whether its base is an input, number of the base): the two have one version counter.
        may_raise: it looks at numbers, such as indices, and raises for some.
        constants: the Program's, which the code takes behind the inputs.
    """

    path: str
    num_threads: int
    inputs: tuple[Input, ...]
    outputs: tuple[tuple[str, int], ...]
    written: tuple[int, ...]
    counted: tuple[tuple[int, int], ...]
    views: tuple[tuple[int, bool, int], ...]
    may_raise: bool
    constants: tuple[torch.Tensor, ...] = ()


def input_of(value: Any) -> Input:
    """The layout of a tensor; an int or None itself."""
    if isinstance(value, torch.Tensor):
        return Layout(value.dtype, tuple(value.shape), value.stride())
    assert value is None or type(value) is int
    return value


def with_constants(spec: CandidateSpec, program: Program) -> CandidateSpec:
    """``spec`` with the tensors that ``program`` owns here."""
    return dataclasses.replace(spec, constants=tuple(program.constants.values()))
