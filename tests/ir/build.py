"""Make small Programs for tests: by recording a function, or by damaging one that was recorded."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from gradc.ir.program import Program
from gradc.ir.recorder import Recorder
from gradc.ir.values import Instruction


def recorded(function: Any, *inputs: torch.Tensor, names: str = "xyz") -> Program:
    """The Program of what ``function`` calls on ``inputs``, named x, y, z."""
    recorder = Recorder("program")
    for value, name in zip(inputs, names, strict=False):
        recorder.add_input(value, name, name)
    with torch.no_grad(), recorder:
        result = function(*inputs)
    return recorder.program(result if isinstance(result, tuple) else (result,))


def with_call(program: Program, index: int, **changes: Any) -> Program:
    """``program`` with fields of its call number ``index`` replaced."""
    calls = list(program.instructions)
    calls[index] = dataclasses.replace(calls[index], **changes)
    return dataclasses.replace(program, instructions=tuple(calls))


def with_slot(program: Program, number: int, **changes: Any) -> Program:
    """``program`` with fields of its slot ``number`` replaced."""
    slots = list(program.slots)
    slots[number] = dataclasses.replace(slots[number], **changes)
    return dataclasses.replace(program, slots=tuple(slots))


def ops(program: Program) -> list[str]:
    """The names of the ops it calls: ``["mm", "tanh"]``."""
    return [_name(instruction) for instruction in program.instructions]


def _name(instruction: Instruction) -> str:
    return str(instruction.op).split(".")[1]
