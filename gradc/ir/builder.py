"""A Program in the making: ATen calls are appended in order, and each tensor is known as one of its slots.

    builder.add_input(tensor, name)
    builder.add_call(op, args, kwargs, result, autocast)
    builder.program(outputs) -> Program

A tensor that was neither declared nor made by such a call is handed to ``lift``, which says what it is. Who makes the calls
is for others to say: see gradc.ir.recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from gradc.ambient import AutocastState
from gradc.ir.floats import StandIns
from gradc.ir.known import KnownTensors, Names
from gradc.ir.metadata import symbolic_number, tensor_meta
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, Slot, Sym, TensorMeta, leaves, map_leaves
from gradc.torch_private.fakes import is_fake

PHANTOM = "not available when the Program runs"


class ProgramBuilder:
    """See the module's docstring. Holds every tensor it was told of until ``forget_tensors``.

    Arguments:
        name: the Program's name.
        lift: called with a tensor of unknown origin; returns its slot (by ``add_input`` or ``add_constant``), or raises.

    Attributes:
        declared: slot of each input -> its position.
        stand_ins: what stands in for inputs that are floats; None where there are none.
    """

    def __init__(self, name: str, lift: Callable[[torch.Tensor], int] | None = None) -> None:
        self.name, self.lift = name, lift or self.add_constant
        self.slots: list[Slot] = []
        self.inputs: list[int] = []
        self.declared: dict[int, int] = {}
        self.constants: dict[int, torch.Tensor] = {}
        self.instructions: list[Instruction] = []
        self.symbols: dict[sympy.Symbol, tuple[str, int, int]] = {}
        self.stand_ins: StandIns | None = None
        self.known = KnownTensors()
        self._names = Names()

    # ---- inputs and the like

    def add_input(self, value: torch.Tensor | torch.SymInt | int, name: str, label: str = "") -> int:
        """Declare the next argument of the Program; returns its slot."""
        position = len(self.inputs)
        if isinstance(value, torch.Tensor):
            slot = self._new_slot(name, tensor_meta(value), label)
            self.known.add(slot, value)
            for kind, dims in (("size", value.shape), ("stride", value.stride())):
                for dimension, size in enumerate(dims):
                    self._bind_symbol(size, (kind, position, dimension))
        else:
            slot = self._new_slot(name, None, label)
            self._bind_symbol(value, ("int", position, 0))
        self.declared[slot] = position
        self.inputs.append(slot)
        return slot

    def new_argument(self, tensor: torch.Tensor, name: str, label: str) -> int:
        """A slot for an argument like ``tensor`` that no recorded call reads: append it to ``inputs``."""
        return self._new_slot(name, tensor_meta(tensor), label)

    def add_constant(self, tensor: torch.Tensor) -> int:
        """Make a real tensor that the captured code owns a constant of the Program."""
        slot = self._new_slot("constant", tensor_meta(tensor), "")
        self.constants[slot] = tensor
        self.known.add(slot, tensor)
        return slot

    def add_phantom(self, tensor: torch.Tensor) -> int:
        """Give a slot to a tensor that cannot be had when the Program runs: no call that stays may read it."""
        slot = self._new_slot("phantom", tensor_meta(tensor), PHANTOM)
        self.known.add(slot, tensor)
        return slot

    # ---- which tensor is which slot

    def identify(self, tensor: torch.Tensor, known: torch.Tensor) -> None:
        """From here on ``tensor`` is what a known one is."""
        slot = self.slot_of(known)
        assert slot is not None, "known tensors have slots"
        self.known.add(slot, tensor)

    def forget_tensors(self) -> None:
        """Let go of the tensors; what was recorded stays."""
        self.known.clear()

    def slot_of(self, tensor: torch.Tensor) -> int | None:
        """The slot of a tensor that was declared or made here; None for any other."""
        return self.known.slot_of(tensor)

    def slot_of_alias(self, tensor: torch.Tensor) -> int | None:
        """The slot of a known tensor that ``tensor`` is a copy of the handle of: same storage, same layout."""
        return self.known.slot_of_alias(tensor)

    def tensor_of(self, slot: int) -> torch.Tensor:
        """The tensor that a slot first stood for."""
        return self.known.tensor_of(slot)

    # ---- calls and outputs

    def add_call(
        self, op: Any, args: Any, kwargs: Any, result: Any, autocast: AutocastState, where: str = "", origin: str = ""
    ) -> Instruction:
        """Append a call that was made. ``autocast``: what the calls see which the op's kernel makes."""
        new_args = map_leaves(self._argument, tuple(args))
        new_kwargs = map_leaves(self._argument, dict(kwargs))
        outs = tuple(self._result(op, leaf) for leaf in leaves(result)) if result is not None else ()
        returns_list = isinstance(result, (tuple, list))
        call = Instruction(op, new_args, new_kwargs, outs, returns_list, autocast, where, origin)
        self.instructions.append(call)
        for slot in call.writes:
            self.known.moved(slot)
        return call

    def program(self, outputs: Sequence[Any]) -> Program:
        """The Program of what was recorded, returning ``outputs`` (tensors, ints, SymInts or None)."""
        return Program(
            name=self.name,
            slots=tuple(self.slots),
            inputs=tuple(self.inputs),
            constants=self.constants,
            instructions=tuple(self.instructions),
            outputs=tuple(self._output(value) for value in outputs),
            symbols=self.symbols,
        )

    # ---- helpers

    def _argument(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            slot = self.slot_of(leaf)
            if slot is None and is_fake(leaf):
                slot = self.slot_of_alias(leaf)
            return Ref(self.lift(leaf) if slot is None else slot)
        if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return symbolic_number(leaf)
        if type(leaf) is float and self.stand_ins is not None:
            return self.stand_ins.known(leaf)
        return leaf

    def _result(self, op: Any, leaf: Any) -> int | None:
        if not isinstance(leaf, torch.Tensor):
            return None
        known = self.slot_of(leaf)
        if known is not None:  # an in-place call returns its argument: a new value of the same slot
            return known
        slot = self._new_slot(op._schema.name.split("::")[1].strip("_") or "value", tensor_meta(leaf), "")
        self.known.add(slot, leaf)
        return slot

    def _output(self, value: Any) -> Ref | Sym | None:
        if value is None:
            return None
        argument = self._argument(value)
        return Sym(sympy.sympify(argument)) if isinstance(argument, (int, float)) else argument

    def _new_slot(self, name: str, meta: TensorMeta | None, label: str) -> int:
        self.slots.append(Slot(self._names.unique(name, is_tensor=meta is not None), meta, label))
        return len(self.slots) - 1

    def _bind_symbol(self, value: Any, source: tuple[str, int, int]) -> None:
        if isinstance(value, torch.SymInt):
            expr = symbolic_number(value)
            is_symbol = isinstance(expr, Sym) and isinstance(expr.expr, sympy.Symbol)
            if is_symbol and (source[0] == "int" or expr.expr not in self.symbols):  # the symbol itself as argument is best
                self.symbols[expr.expr] = source
