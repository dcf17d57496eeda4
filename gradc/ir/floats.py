"""A Python float that changes from call to call is an input of a Program: the int that has its bits, a symbol as a size is.

    bits_of: float -> int                   float_of: int -> float                  exactly, the sign of a zero included
    StandIns: a float met while recording -> what it is of an input, as a Sym, or the float itself

An input has no value while a tape is recorded, and the formulas of autograd take none that is symbolic. Some other float stands
in for it, and is known again in what the ops are given. That it decides nothing, and that nothing else was made of it, shows
when the same is recorded once more with other floats: both must be the same Program. See ``refuse_difference``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sympy
import torch

from gradc.bits import same_bits
from gradc.errors import UnsupportedError
from gradc.ir.program import Program
from gradc.ir.values import Sym

_BITS, _FLOAT = struct.Struct("<q"), struct.Struct("<d")


def bits_of(value: float) -> int:
    """The int with the bits of ``value``."""
    (bits,) = _BITS.unpack(_FLOAT.pack(value))
    return int(bits)


def float_of(bits: int) -> float:
    """The float with these bits."""
    (value,) = _FLOAT.unpack(_BITS.pack(bits))
    return float(value)


# What autograd's formulas make of a number, as C++ and Python round it alike. sympy, for which these are unknown functions,
# leaves them as they are: its own sums and products it would write in another order.
TERMS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "float_of": float_of,
        "negative_of": lambda bits: -float_of(bits),
        "one_less_than": lambda bits: float_of(bits) - 1,
        "two_less_than": lambda bits: float_of(bits) - 1 - 1,  # the exponent of a power, after two derivatives
        "three_less_than": lambda bits: float_of(bits) - 1 - 1 - 1,
        "one_minus": lambda bits: 1 - float_of(bits),
    }
)


class StandIns:
    """The floats that stand in for inputs in one recording; ``turn`` tells one recording from another.

    All lie between 0.5 and 1, so that none is a term of another; a constant of the code has not all of their digits.
    """

    def __init__(self, symbols: Sequence[sympy.Symbol], turn: int) -> None:
        self._floats = {symbol: _stand_in(2 * number + turn) for number, symbol in enumerate(symbols)}
        self._terms = {
            bits_of(function(bits_of(value))): Sym(sympy.Function(name)(symbol), float)
            for symbol, value in self._floats.items()
            for name, function in TERMS.items()
        }

    def for_input(self, value: Any) -> float:
        """The float that an input is in this recording: of a SymInt, its stand-in; of bits, their own."""
        return self._floats[value.node.expr] if isinstance(value, torch.SymInt) else float_of(value)

    def known(self, value: float) -> float | Sym:
        """What a float that an op is given is of an input; the float itself, if it has nothing to do with one."""
        return self._terms.get(bits_of(value), value)


def _stand_in(number: int) -> float:
    return 0.5 + (0.1234567890123456 + number * 0.3819660112501051) % 1 / 2


def refuse_difference(program: Program, other: Program) -> None:
    """Both were recorded from the same function, with other floats for its inputs: nothing may depend on them otherwise.

    Raises:
        UnsupportedError: if a call differs.
    """
    pairs = zip(program.instructions, other.instructions, strict=False)
    for call, twin in pairs:
        if call != twin:
            raise UnsupportedError("float that an op makes something else of", str(call.op), call.where)
    is_same = len(program.instructions) == len(other.instructions) and program.outputs == other.outputs
    if not is_same or program.slots != other.slots or not _are_same(program.constants, other.constants):
        raise UnsupportedError("float that decides what is called", program.name)


def _are_same(constants: Mapping[int, torch.Tensor], others: Mapping[int, torch.Tensor]) -> bool:
    return constants.keys() == others.keys() and all(same_bits(constants[slot], others[slot]) for slot in constants)
