"""Record the ATen calls that run below autograd, in order, as a Program.

    with Recorder("forward") as recorder: ...      every call inside is made, and noted
    recorder.program(outputs) -> Program

Serves both captures: on fake tensors ahead of time, on real ones when the live backward is captured. A tensor that was
neither declared with ``add_input`` nor made by a recorded call is handed to ``lift``, which says what it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradc.ambient import AutocastState, autocast_state
from gradc.errors import UnsupportedError
from gradc.ir.known import KnownTensors, Names
from gradc.ir.layouts import corrected
from gradc.ir.ops import PLAIN_META, PLAIN_META_OF_CONTIGUOUS, is_metadata_query
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, Slot, Sym, TensorMeta, leaves, map_leaves
from gradc.torch_private.autograd import is_view, use_count
from gradc.torch_private.fakes import call_on_meta, has_symbolic_sizes, is_fake, python_meta_kernels
from gradc.torch_private.modes import has_autocast_kernel

_aten = torch.ops.aten
_device = torch.ops.prim.device.default
PHANTOM = "not available when the Program runs"
_USES = 4  # of a gradient that only one buffer holds, when the engine adds to it; one more, if it was given to the engine


class Recorder(TorchDispatchMode):
    """A dispatch mode that notes each call. Holds every tensor it saw until it is dropped itself.

    Arguments:
        name: the Program's name.
        lift: called with a tensor of unknown origin; returns its slot (by ``add_input`` or ``add_constant``), or raises.
        place: called for each instruction; returns (user's line, autograd node).

    Attributes:
        ambient: the autocast around the calls; a dispatch mode cannot ask for it, since it runs with autocast off.
        is_autocast_at_work: True while an op runs that autocast casts for: what it calls sees no autocast.
        declared: slot of each input -> its position.
        intercept: while given, called for (op, args, kwargs) instead, and nothing is noted.
        adds_up: true while torch's engine adds up gradients, between nodes.
        stealable: slots of inputs that it may write a sum over, because nobody else holds them.
    """

    def __init__(
        self,
        name: str,
        lift: Callable[[torch.Tensor], int] | None = None,
        place: Callable[[], tuple[str, str]] = lambda: ("", ""),
    ) -> None:
        super().__init__()
        self.name, self.lift, self.place = name, lift or self.add_constant, place
        self.ambient = autocast_state()
        self.is_autocast_at_work = False
        self.intercept: Callable[[Any, Any, Any], Any] | None = None
        self.adds_up = False
        self.stealable: set[int] = set()
        self.slots: list[Slot] = []
        self.inputs: list[int] = []
        self.declared: dict[int, int] = {}
        self.constants: dict[int, torch.Tensor] = {}
        self.instructions: list[Instruction] = []
        self.symbols: dict[sympy.Symbol, tuple[str, int, int]] = {}
        self.known = KnownTensors()
        self._names = Names()

    # ---- what is known

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

    # ---- the recording

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op is _device and is_fake(args[0]):  # asked several times for each call; the mode's own way is long
            return args[0].fake_device
        if self.intercept is not None:
            return self.intercept(op, args, kwargs)
        if op is _aten.lift_fresh.default and not is_fake(args[0]):
            self.add_constant(args[0])
            op_recorded = _aten.clone.default  # the constant itself must survive in-place use of the lifted tensor
        else:
            op_recorded = op
        with python_meta_kernels() if has_symbolic_sizes(leaves((args, kwargs))) else contextlib.nullcontext():
            result = self._call(op, args, kwargs)
        result = corrected(op, args, kwargs, result)
        if self.adds_up and op is _aten.add.Tensor and (total := self._written_over(args, result)) is not None:
            return total
        if op_recorded is not op and not is_fake(result):  # captured live: this run must not mutate the constant either
            result = result.clone()
        returned = list(leaves(result))
        if any(isinstance(leaf, (torch.SymInt, torch.SymFloat)) for leaf in returned) and not is_metadata_query(op):
            raise UnsupportedError("data-dependent value", str(op), self.place()[0])
        if not any(isinstance(leaf, torch.Tensor) for leaf in returned) and not op._schema.is_mutable:
            return result
        self._note(op_recorded, args, kwargs, result)
        return result

    def _written_over(self, addends: Any, total: torch.Tensor) -> torch.Tensor | None:
        """The sum with the strides of the first addend, if the engine would write it over that, and ``total`` has others.

        It would if nobody else held the addend; traced, the recording does, and it makes a new tensor.
        """
        first, second = addends
        meta, new, slot = tensor_meta(first), tensor_meta(total), self.slot_of(first)
        if torch.is_grad_enabled() or meta is None or new is None or meta == dataclasses.replace(new, offset=meta.offset):
            return None
        is_stealable = slot in self.stealable
        if is_view(first) or use_count(first) > _USES + is_stealable or (slot in self.declared and not is_stealable):
            return None
        copy = self._call(_aten.clone.default, (first,), {})
        if tensor_meta(copy) != dataclasses.replace(meta, offset=0):
            return None  # with gaps or overlaps: it is not written over
        self._note(_aten.clone.default, (first,), {}, copy)
        self._note(_aten.add_.Tensor, (copy, second), {}, self._call(_aten.add_.Tensor, (copy, second), {}))
        return copy

    def _note(self, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        new_args = map_leaves(self._argument, tuple(args))
        new_kwargs = map_leaves(self._argument, dict(kwargs))
        outs = tuple(self._result(op, leaf) for leaf in leaves(result)) if result is not None else ()
        where, origin = self.place()
        returns_list = isinstance(result, (tuple, list))
        seen = self._seen_by(op)
        call = Instruction(op, new_args, new_kwargs, outs, returns_list, seen, where, origin)
        self.instructions.append(call)
        for slot in call.writes:
            self.known.moved(slot)

    def _call(self, op: Any, args: Any, kwargs: Any) -> Any:
        made = None
        if not kwargs and (op in PLAIN_META or op in PLAIN_META_OF_CONTIGUOUS):
            made = call_on_meta(op, args, op in PLAIN_META or _are_alike_and_contiguous(args))
        return op(*args, **kwargs) if made is None else made

    def _seen_by(self, op: Any) -> AutocastState:
        """The autocast that the calls see which the op's kernel makes."""
        return AutocastState() if self.is_autocast_at_work or is_cast_for(op, self.ambient) else self.ambient

    def _argument(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            slot = self.slot_of(leaf)
            if slot is None and is_fake(leaf):
                slot = self.slot_of_alias(leaf)
            return Ref(self.lift(leaf) if slot is None else slot)
        if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return symbolic_number(leaf)
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


def _are_alike_and_contiguous(args: Any) -> bool:
    first, second = args
    is_usual = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and first.dtype == second.dtype
    return is_usual and first.shape == second.shape and first.is_contiguous() and second.is_contiguous()


def is_cast_for(op: Any, state: AutocastState) -> bool:
    """True if autocast in ``state`` casts the arguments of ``op``; what the op calls then sees no autocast."""
    return any(has_autocast_kernel(op, device) for device, _ in state.enabled)


def tensor_meta(tensor: torch.Tensor) -> TensorMeta | None:
    """Metadata of a strided tensor; None for another layout."""
    if tensor.layout is not torch.strided:
        return None
    return TensorMeta(
        tensor.dtype,
        tuple(symbolic_number(size) for size in tensor.shape),
        tuple(symbolic_number(size) for size in tensor.stride()),
        symbolic_number(tensor.storage_offset()),
        tensor.device,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def symbolic_number(value: Any) -> Any:
    """A symbolic number as Sym, or as a plain one where its value is fixed."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        expr = value.node.expr
        if expr.is_number or expr in (sympy.true, sympy.false):
            return value.node.pytype(expr)
        return Sym(expr, value.node.pytype)
    return value
