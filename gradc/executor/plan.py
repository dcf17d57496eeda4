"""Lay a Program out for the native executor: what each call reads, makes, frees and mutates, by slot number.

    lay_out: Program -> Layout                      plain tuples, which gradc._C.Plan takes

Nothing is decided when the plan runs that could be decided here. Arguments are put in the order of the op's schema, and
become operands:

    ("constant", value)   ("slot", number)   ("bound", number)   ("pack", (operand, ...))   ("default", None)

A bound operand is a whole argument that depends on symbols only, such as ``[s0, 32]``. All of a Program's bound operands
are computed by one function, once for each distinct tuple of symbol values (the executor keeps the recent ones).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gradc.errors import UnsupportedError
from gradc.ir.program import Instruction, Program, Ref, Sym, leaves
from gradc.ir.text import symbolic

Operand = tuple[str, Any]


@dataclasses.dataclass(frozen=True)
class Step:
    """One call. ``deaths``: slots that are cleared after it. ``writes``: slots whose version counter it bumps.

    ``shares`` holds (view, base) pairs of slots: the view takes the base's version counter. Autograd does so for every
    view; here only views that somebody could check are worth the time (see ``_checked_views``).
    """

    name: str
    overload: str
    operands: tuple[Operand, ...]
    outs: tuple[int | None, ...]
    deaths: tuple[int, ...]
    writes: tuple[int, ...]
    shares: tuple[tuple[int, int], ...]
    autocast: tuple[tuple[str, torch.dtype], ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """A Program by slot numbers. ``bind`` maps the values of ``symbols`` to those of the bound operands."""

    name: str
    num_slots: int
    inputs: tuple[int, ...]
    constants: tuple[tuple[int, torch.Tensor], ...]
    unread: tuple[int, ...]
    symbols: tuple[tuple[str, int, int], ...]
    bind: Callable[..., tuple[Any, ...]] | None
    steps: tuple[Step, ...]
    outputs: tuple[Operand, ...]


def lay_out(program: Program) -> Layout:
    """See the module's docstring.

    Raises:
        UnsupportedError: for a call that does not go through the dispatcher, such as a higher-order operator.
    """
    for instruction in program.instructions:
        _check_supported(instruction)
    binder = _Binder(program)
    deaths: dict[int, list[int]] = {}
    for slot, index in program.last_uses().items():
        deaths.setdefault(index, []).append(slot)
    checked = _checked_views(program)
    steps = tuple(
        _step(instruction, binder, tuple(deaths.get(index, ())), checked)
        for index, instruction in enumerate(program.instructions)
    )
    outputs = tuple(binder.operand(out) for out in program.outputs)
    return Layout(
        name=program.name,
        num_slots=len(program.slots),
        inputs=program.inputs,
        constants=tuple(program.constants.items()),
        unread=tuple(deaths.get(-1, ())),
        symbols=tuple(program.symbols.values()),
        bind=binder.compile(),
        steps=steps,
        outputs=outputs,
    )


def _check_supported(instruction: Instruction) -> None:
    schema = getattr(instruction.op, "_schema", None)
    if schema is None:
        raise UnsupportedError("operator without a schema", str(instruction.op), instruction.where)
    names = {argument.name for argument in schema.arguments}
    if len(instruction.args) > len(names) or not names >= set(instruction.kwargs):
        raise UnsupportedError("call that does not fit its schema", str(instruction.op), instruction.where)


def _step(instruction: Instruction, binder: _Binder, deaths: tuple[int, ...], checked: set[int]) -> Step:
    schema = instruction.op._schema
    given = [argument.name for argument in schema.arguments[: len(instruction.args)]]
    values = dict(zip(given, instruction.args)) | instruction.kwargs
    operands = (
        binder.operand(values[argument.name], str(argument.real_type)) if argument.name in values else ("default", None)
        for argument in schema.arguments
    )
    return Step(
        name=schema.name,
        overload=schema.overload_name,
        operands=tuple(operands),
        outs=instruction.outs,
        deaths=deaths,
        writes=tuple(dict.fromkeys(instruction.writes)),
        shares=tuple((view, base) for view, base in _views(instruction) if view in checked),
        autocast=instruction.autocast.enabled,
    )


class _Binder:
    """Turns argument trees into operands, and collects those that depend on symbols."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.numbers: dict[tuple[str, str], int] = {}

    def operand(self, tree: Any, kind: str = "") -> Operand:
        """``kind`` is the type that the schema wants: 2 is not the same operand as an int and as a float."""
        kinds = {type(leaf) for leaf in leaves(tree)}
        if isinstance(tree, Ref):
            return ("slot", tree.slot)
        if Ref in kinds:
            return ("pack", tuple(self.operand(item, kind + "[]") for item in tree))
        if Sym in kinds:
            return ("bound", self.numbers.setdefault((kind, _source(tree)), len(self.numbers)))
        return ("constant", tree)

    def compile(self) -> Callable[..., tuple[Any, ...]] | None:
        """The function from symbol values to bound operands; None for a Program without any."""
        if not self.numbers:
            return None
        names = ", ".join(str(symbol) for symbol in self.program.symbols)
        source = f"lambda {names}: ({', '.join(tree for _, tree in self.numbers)},)"
        return eval(source, {"torch": torch, "math": math})


def _source(tree: Any) -> str:
    """An argument tree of Syms and constants as Python source."""
    if isinstance(tree, (tuple, list)):
        return "[" + ", ".join(_source(item) for item in tree) + "]"
    return symbolic(tree.expr) if isinstance(tree, Sym) else repr(tree)


def _views(instruction: Instruction) -> Iterator[tuple[int, int]]:
    """(view, base) for every slot that the call makes as a view of another, by its schema."""
    schema = instruction.op._schema
    bases = [
        leaf.slot
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and not argument.alias_info.is_write
        for leaf in leaves(
            instruction.args[position] if position < len(instruction.args) else instruction.kwargs.get(argument.name)
        )
        if isinstance(leaf, Ref)
    ]
    if bases and any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns):
        yield from ((out, bases[0]) for out in instruction.outs if out is not None and out != bases[0])


def _checked_views(program: Program) -> set[int]:
    """Views whose version counter may be compared or bumped: outputs, mutated ones, and what those are views of."""
    checked = {out.slot for out in program.outputs if isinstance(out, Ref)}
    for instruction in reversed(program.instructions):
        checked.update(instruction.writes)
        checked.update(base for view, base in _views(instruction) if view in checked)
    return checked
