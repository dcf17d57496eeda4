"""A ProgramBuilder is told of calls, whoever makes them."""

import torch

from gradc.ambient import NO_AUTOCAST
from gradc.ir.builder import ProgramBuilder
from gradc.ir.text import print_program
from gradc.ir.verify import verify
from tests.ir.build import ops

aten = torch.ops.aten


def test_calls_are_noted_without_a_mode():
    builder = ProgramBuilder("program")
    x = torch.ones(2)
    builder.add_input(x, "x")
    y = x.sin()
    call = builder.add_call(aten.sin.default, (x,), {}, y, NO_AUTOCAST, where="here")
    assert call.where == "here" and builder.slot_of(y) == call.outs[0]
    builder.add_call(aten.add_.Tensor, (y, 1), {}, y, NO_AUTOCAST)
    made = builder.program([y])
    verify(made)
    assert ops(made) == ["sin", "add_"] and "x.sin" not in print_program(made)


def test_a_tensor_that_nobody_declared_is_lifted():
    seen = []

    def lift(tensor):
        seen.append(tensor)
        return builder.add_constant(tensor)

    builder = ProgramBuilder("program", lift)
    stray = torch.ones(2)
    builder.add_call(aten.sin.default, (stray,), {}, stray.sin(), NO_AUTOCAST)
    assert seen == [stray] and list(builder.constants.values()) == [stray]
