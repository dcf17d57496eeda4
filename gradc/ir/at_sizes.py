"""A Program with symbols as it is for some sizes: what depends on sizes alone becomes the number that it comes to.

    symbols_of_sizes: Program -> the symbols that a shape, stride or offset of it depends on
    size_symbols:     the same in the Program's order; none where it does not know them all
    at_sizes:         (Program, values of its size_symbols, layouts) -> Program

The symbols stay, for what else depends on them: a float that changes from call to call. How tensors lie in memory is not asked
of the symbolic strides, which are found out in another way than torch's kernels go: a run has seen it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import sympy

from gradc.ir.program import Program
from gradc.ir.sizes import Sizes
from gradc.ir.values import Slot, Sym, TensorMeta, map_leaves

Seen = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, stride, offset


def symbols_of_sizes(program: Program) -> set[sympy.Symbol]:
    """See the module's docstring."""
    metas = [slot.meta for slot in program.slots if slot.meta is not None]
    return {symbol for meta in metas for sym in _syms(meta) for symbol in sym.expr.free_symbols}


def size_symbols(program: Program) -> tuple[sympy.Symbol, ...]:
    """See the module's docstring."""
    read = symbols_of_sizes(program)
    return tuple(symbol for symbol in program.symbols if symbol in read) if read <= program.symbols.keys() else ()


def at_sizes(program: Program, values: Sequence[int], layouts: Sequence[Seen | None]) -> Program:
    """See the module's docstring. ``layouts``: of each slot, as a run with these sizes has it; None for what is no tensor."""
    symbols = size_symbols(program)
    known, sizes = frozenset(symbols), Sizes({symbol.name: value for symbol, value in zip(symbols, values, strict=True)})

    def number(value: Any) -> Any:
        return sizes(value) if isinstance(value, Sym) and value.expr.free_symbols <= known else value

    calls = tuple(
        dataclasses.replace(call, args=map_leaves(number, call.args), kwargs=map_leaves(number, call.kwargs))
        for call in program.instructions
    )
    return dataclasses.replace(program, slots=tuple(map(_laid_out, program.slots, layouts)), instructions=calls)


def _syms(meta: TensorMeta) -> Iterator[Sym]:
    return (size for size in (*meta.shape, *meta.stride, meta.offset) if isinstance(size, Sym))


def _laid_out(slot: Slot, seen: Seen | None) -> Slot:
    if slot.meta is None or seen is None:
        return dataclasses.replace(slot, meta=None)
    shape, stride, offset = seen
    meta = dataclasses.replace(slot.meta, shape=tuple(shape), stride=tuple(stride), offset=offset)
    return dataclasses.replace(slot, meta=meta)
