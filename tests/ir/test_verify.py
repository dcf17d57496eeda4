"""The verifier passes what is legal, and names each kind of damage."""

import dataclasses

import pytest
import sympy
import torch

from gradc.errors import InternalError
from gradc.ir.builder import PHANTOM
from gradc.ir.program import Program
from gradc.ir.values import Ref, Sym
from gradc.ir.verify import verify
from tests.ir.build import recorded, with_call, with_slot

aten = torch.ops.aten


def good() -> Program:
    """x, y -> sin, mul: slots 0, 1 -> 2, 3."""
    return recorded(lambda x, y: x.sin() * y, torch.ones(2, 3), torch.ones(2, 3))


def replaced(**changes):
    return dataclasses.replace(good(), **changes)


def meta(**changes):
    return dataclasses.replace(good().slots[2].meta, **changes)


s0 = sympy.Symbol("s0", integer=True)
SINE = good().instructions[0]

DAMAGE = {
    "two slots have the name 'sin'": with_slot(good(), 3, name="sin"),
    "slot 2 has the name 'for', which the printed text cannot use": with_slot(good(), 2, name="for"),
    "slot 2 has the name 'args', which the printed text cannot use": with_slot(good(), 2, name="args"),
    "slot 2 has the name 'a.b', which the printed text cannot use": with_slot(good(), 2, name="a.b"),
    "symbol s0 is read off input 5, but there are 2 inputs": replaced(symbols={s0: ("size", 5, 0)}),
    "symbol s0 is read off size 0 of input 0, which is not s0": replaced(symbols={s0: ("size", 0, 0)}),
    "symbol s0 is read off input 0 as an int, but that is a tensor": replaced(symbols={s0: ("int", 0, 0)}),
    "the symbol s0 is read nowhere": replaced(outputs=(Sym(s0),)),
    "an input or constant is slot 9, but there are 4 slots": replaced(inputs=(0, 9)),
    "x is two inputs, or an input and a constant": replaced(inputs=(0, 0)),
    "y is read, but nothing made it before": replaced(inputs=(0,)),
    "sin is read, but nothing made it before": replaced(instructions=tuple(reversed(good().instructions))),
    "mul is returned, but nothing made it before": replaced(instructions=(SINE,)),
    "slot 7 is returned, but there are 4 slots": replaced(outputs=(Ref(7),)),
    "slot 8 is read, but there are 4 slots": with_call(good(), 0, args=(Ref(8),)),
    "a result is slot 9, but there are 4 slots": with_call(good(), 0, outs=(9,)),
    "sin is made a second time": with_call(good(), 1, outs=(2,), args=(Ref(0), Ref(1))),
    f"sin is read, but it is {PHANTOM}": with_slot(good(), 2, label=PHANTOM),
    "aten.sin.default takes 1 arguments, not 2": with_call(good(), 0, args=(Ref(0), Ref(1))),
    "aten.sin.default has no argument 'alpha' left": with_call(good(), 0, kwargs={"alpha": 1}),
    "aten.sin.default needs its argument 'self'": with_call(good(), 0, args=()),
    "aten.sin.default returns 1 values, not 2": with_call(good(), 0, outs=(2, None)),
    "returns_list is True, which aten.sin.default denies": with_call(good(), 0, returns_list=True),
    "sin is said to be f64[2, 3][3, 1]cpu, but the call makes f32[2, 3][3, 1]cpu": with_slot(
        good(), 2, meta=meta(dtype=torch.float64)
    ),
    "sin is said to be f32[3, 2][2, 1]cpu, but the call makes f32[2, 3][3, 1]cpu": with_slot(
        good(), 2, meta=meta(shape=(3, 2), stride=(2, 1))
    ),
    "sin is said to be f32[2, 3][1, 2]cpu, but the call makes f32[2, 3][3, 1]cpu": with_slot(
        good(), 2, meta=meta(stride=(1, 2))
    ),
    "sin is said to be f32[2, 3][3, 1]meta, but the call makes f32[2, 3][3, 1]cpu": with_slot(
        good(), 2, meta=meta(device=torch.device("meta"))
    ),
    "the call raises RuntimeError: ": with_slot(good(), 1, meta=meta(shape=(5, 7), stride=(7, 1))),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_named(message):
    with pytest.raises(InternalError) as caught:
        verify(DAMAGE[message], "a test")
    assert str(caught.value).startswith(f"the program 'program', made by a test, is not legal: {message}")


class FreesTooEarly(Program):
    def last_uses(self):
        return super().last_uses() | {2: 0}


class FreesAnOutput(Program):
    def last_uses(self):
        return super().last_uses() | {3: 1}


class FreesTooFew(Program):
    def last_uses(self):
        return {slot: index for slot, index in super().last_uses().items() if slot != 2}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (FreesTooEarly, "sin is read after it is freed by call 0"),
        (FreesAnOutput, "mul is freed, but it is an output or a constant"),
        (FreesTooFew, "sin is never freed"),
    ],
)
def test_wrong_lifetimes(kind, message):
    fields = {field.name: getattr(good(), field.name) for field in dataclasses.fields(Program)}
    with pytest.raises(InternalError, match=message):
        verify(kind(**fields))


def test_the_message_shows_the_call_and_the_program():
    with pytest.raises(InternalError) as caught:
        verify(with_slot(good(), 3, meta=meta(dtype=torch.int64)))
    text = str(caught.value)
    assert "\n  in call 1: mul: 'i64[2, 3][3, 1]cpu' = torch.ops.aten.mul.Tensor(sin, y)\n" in text
    assert text.endswith("    return [mul]\n")


def views_and_mutation(x, y):
    base = x.sin()
    row = base[0]
    row.add_(y[0])
    base.t_()
    values, places = base.sort()
    parts = base.split(1)
    return values, places, parts[1], row, torch.nn.functional.dropout(x, 0.5)


def test_views_mutation_lists_and_draws_are_legal():
    verify(recorded(views_and_mutation, torch.ones(2, 3), torch.ones(2, 3)))


def test_undeclared_change_of_layout():
    made = recorded(lambda x: x.sin().t_(), torch.ones(2, 3))
    verify(made)
    sine = made.instructions[0].outs[0]
    with pytest.raises(InternalError, match="sin is made a second time|is said to be"):
        verify(with_call(made, 1, op=aten.t.default, outs=(sine,), args=(Ref(0),)))


def test_what_fake_tensors_cannot_tell_is_taken_on_trust():
    verify(recorded(lambda x: x.nonzero().sum(0), torch.tensor([1, 0, 2])))


def test_sizes_may_be_symbols():
    made = good()
    sizes = meta(shape=(Sym(s0), 3))
    made = with_slot(made, 0, meta=sizes)
    verify(dataclasses.replace(made, symbols={s0: ("size", 0, 0)}, outputs=(Ref(3), Sym(s0 * 2))))
