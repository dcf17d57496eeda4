"""Floats as inputs of Programs: their bits, what stands in for them, and what two recordings show."""

from __future__ import annotations

import math

import pytest
import sympy
import torch

from gradc.errors import UnsupportedError
from gradc.ir.floats import TERMS, StandIns, bits_of, float_of, refuse_difference
from gradc.ir.recorder import Recorder
from gradc.ir.values import Sym

SYMBOLS = [sympy.Symbol(f"bits_{number}", integer=True) for number in range(8)]


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -math.inf, 5e-324, 0.1, -1.7976931348623157e308])
def test_bits_are_exact(value):
    assert repr(float_of(bits_of(value))) == repr(value)


def test_every_term_of_every_stand_in_is_another_float():
    for turn in range(2):
        stand_ins = StandIns(SYMBOLS, turn)
        known = [stand_ins.known(f(bits_of(stand_ins._floats[symbol]))) for symbol in SYMBOLS for f in TERMS.values()]
        assert len(set(known)) == len(SYMBOLS) * len(TERMS) and all(isinstance(term, Sym) for term in known)


def test_other_floats_are_themselves():
    stand_ins = StandIns(SYMBOLS, 0)
    assert [stand_ins.known(value) for value in (0.5, 1.0, -1.0, 0.1)] == [0.5, 1.0, -1.0, 0.1]


def recorded(function, turn):
    stand_ins, x = StandIns(SYMBOLS[:1], turn), torch.ones(3)
    (value,) = stand_ins._floats.values()
    with Recorder("forward") as recorder:
        recorder.stand_ins = stand_ins
        recorder.add_input(x, "x")
        result = function(x, value)
    return recorder.program([result])


@pytest.mark.parametrize("function", [lambda x, s: x * s, lambda x, s: x - (1 - s), lambda x, s: (s - 1) * (x / -s)])
def test_terms_are_the_same_in_both_recordings(function):
    refuse_difference(recorded(function, 0), recorded(function, 1))


DEPENDING = {
    "another number": (lambda x, s: x * math.log(s), "something else"),
    "a branch": (lambda x, s: x.sin() if s < 0.6 else x.cos(), "something else"),
    "one call more": (lambda x, s: x * s if s < 0.6 else (x * s).sin(), "decides"),
    "a constant": (lambda x, s: x + torch.tensor([s, s, s]), "decides"),
}


@pytest.mark.parametrize("name", DEPENDING)
def test_what_else_depends_on_a_float_is_refused(name):
    function, words = DEPENDING[name]
    with pytest.raises(UnsupportedError, match=words):
        refuse_difference(recorded(function, 0), recorded(function, 1))
