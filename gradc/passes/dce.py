"""Calls that a Program does without, and values that it cannot have.

    dce:       Program -> the same without calls that eager would not notice missing
    refuse_phantoms: Program -> the same, if it can run at all
"""

from __future__ import annotations

import dataclasses

import torch

from gradc.errors import UnsupportedError
from gradc.ir.builder import PHANTOM
from gradc.ir.ops import changes_layout, has_effect, is_view_op
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, renamed

_aten = torch.ops.aten


def dce(program: Program, *, is_backward: bool) -> Program:
    """Remove calls without effect: views, aliases, and in a backward whatever only fed gradients nobody asked for.

    A forward keeps every kernel that eager runs, used or not: it may raise (an index out of bounds), and eager's would.
    """
    program = _forward_aliases(program)
    live = {out.slot for out in program.outputs if isinstance(out, Ref)}
    kept: list[Instruction] = []
    for instruction in reversed(program.instructions):
        is_used = any(out in live for out in instruction.outs if out is not None)
        if is_used or has_effect(instruction.op) or not (is_backward or is_view_op(instruction.op)):
            kept.append(instruction)
            live.update(instruction.reads)
    return dataclasses.replace(program, instructions=tuple(reversed(kept)))


def refuse_phantoms(program: Program) -> Program:
    """The Program as it is, if no call needs a value that it cannot have.

    Raises:
        UnsupportedError: if one does: the user's code keeps a forward value where gradc does not see it.
    """
    for instruction in program.instructions:
        for slot in instruction.reads:
            if program.slots[slot].label == PHANTOM:
                raise UnsupportedError("forward value kept outside saved tensors", str(instruction.op), instruction.where)
    return program


def _forward_aliases(program: Program) -> Program:
    """Let every reader of ``detach(x)`` read x: below autograd they are the same tensor.

    A detach that is an output stays, since outputs must be objects of their own; so does one whose layout changes alone,
    by a call such as ``t_``.
    """
    moved = {slot for call in program.instructions if changes_layout(call.op) for slot in call.writes}
    own = moved | {out.slot for out in program.outputs if isinstance(out, Ref)}
    alias: dict[int, int] = {}

    kept: list[Instruction] = []
    for instruction in program.instructions:
        args, kwargs = renamed(instruction.args, alias), renamed(instruction.kwargs, alias)
        if instruction.op is _aten.detach.default and args[0].slot not in moved and instruction.outs[0] not in own:
            (out,) = instruction.outs
            assert out is not None
            alias[out] = args[0].slot
        else:
            outs = tuple(out if out is None else alias.get(out, out) for out in instruction.outs)
            kept.append(dataclasses.replace(instruction, args=args, kwargs=kwargs, outs=outs))
    return dataclasses.replace(program, instructions=tuple(kept))
