"""What a region does besides computing values: which of its outputs are inputs, or views of others.

    analyse_outputs: Tape -> (outputs, values)

``values`` are the fake tensors that the forward Program must return, each with its tape edge if it is differentiable;
``outputs`` say how each output of the region is made of them. An output that is a view of an input, or of a tensor that
another output shows too, is made again by the same view ops on the live tensor, so that it is a view there as well,
with eager's own view node as its ``grad_fn``. See Note [Outputs that alias].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from gradc.aot.tape import Edge, Tape, edge_of
from gradc.errors import UnsupportedError
from gradc.ir.passes import is_view_op
from gradc.ir.program import Instruction, Ref, Sym, map_leaves
from gradc.torch_private import is_view

Resolve = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Plain:
    """An output that is no tensor: a number, None, or a size."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Returned:
    """An output that is an input, the same object."""

    primal: int


@dataclasses.dataclass(frozen=True)
class Value:
    """An output that the forward Program returns at ``position``."""

    position: int


@dataclasses.dataclass(frozen=True)
class Derived:
    """An output made from another tensor of the call by view ops."""

    base: Returned | Value
    steps: tuple[Callable[[torch.Tensor, Resolve], torch.Tensor], ...]
    requires_grad: bool


Output = Plain | Returned | Value | Derived


def analyse_outputs(tape: Tape) -> tuple[tuple[Output, ...], list[tuple[torch.Tensor, Edge | None]]]:
    """See the module's docstring.

    Raises:
        UnsupportedError: for an output whose views cannot be made again.
    """
    return _Analysis(tape).run()


class _Analysis:
    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.values: list[tuple[torch.Tensor, Edge | None]] = []
        self.position_of: dict[int, int] = {}
        self.primal_of = {id(p.fake): i for i, p in enumerate(tape.primals) if p.fake is not None and p.cast_of is None}
        self.maker = {out: i for i in tape.recorder.instructions for out in i.outs if out is not None and is_view_op(i.op)}
        tensors = {id(out): out for out in tape.outputs if isinstance(out, torch.Tensor)}
        self.shared = _shared_storages(list(tensors.values()))

    def run(self) -> tuple[tuple[Output, ...], list[tuple[torch.Tensor, Edge | None]]]:
        return tuple(self.output(out) for out in self.tape.outputs), self.values

    def output(self, out: Any) -> Output:
        if isinstance(out, torch.SymInt):
            return Plain(Sym(out.node.expr) if not out.node.expr.is_number else int(out.node.expr))
        if not isinstance(out, torch.Tensor):
            if isinstance(out, (torch.SymFloat, torch.SymBool)):
                raise UnsupportedError("symbolic output that is no size", repr(out))
            return Plain(out)
        if id(out) in self.primal_of:
            return Returned(self.primal_of[id(out)])
        if is_view(out) or self.maker.get(self.slot(out)) is not None:
            base = self.base_of(out)
            if base is not None:
                return base
        return self.value(out)

    def slot(self, tensor: torch.Tensor) -> int:
        slot = self.tape.recorder.slot_of(tensor)
        if slot is None:
            raise UnsupportedError("output that no recorded call made")
        return slot

    def value(self, out: torch.Tensor) -> Value:
        if id(out) not in self.position_of:
            self.position_of[id(out)] = len(self.values)
            self.values.append((out, edge_of(out) if is_recorded(out) else None))
        return Value(self.position_of[id(out)])

    def base_of(self, out: torch.Tensor) -> Derived | None:
        """How to make the view ``out`` again; None if nothing outside can tell that it is one."""
        steps: list[Instruction] = []
        slots: list[int] = []
        slot = self.slot(out)
        while slot in self.maker:
            steps.append(self.maker[slot])
            slots.append(slot)
            slot = self.maker[slot].args[0].slot
        root = self.tape.recorder.tensor_of(slot)
        if id(root) in self.primal_of:
            base: Returned | Value = Returned(self.primal_of[id(root)])
        elif self.is_shown(out, root, steps) and id(root) != id(out):
            base = self.value(root)
        else:
            return None
        replays = tuple(_replay(step, made) for step, made in zip(reversed(steps), reversed(slots), strict=True))
        return Derived(base, replays, is_recorded(out))

    def is_shown(self, out: torch.Tensor, root: torch.Tensor, steps: list[Instruction]) -> bool:
        """True if the user can tell the view ``out`` of ``root`` from a tensor of its own.

        By another view of the same storage; by in-place use, which some views refuse; or by its flag: a view made under
        no_grad of a tensor that requires a gradient is a leaf that requires one.
        """
        is_leaf = out.requires_grad and not is_recorded(out)
        return is_leaf or root.untyped_storage()._cdata in self.shared or any(step.returns_list for step in steps)


def is_recorded(out: torch.Tensor) -> bool:
    """True if the tape knows how ``out`` was made, so that a gradient with respect to it goes on."""
    return out.grad_fn is not None


def _shared_storages(tensors: list[torch.Tensor]) -> set[int]:
    """The storages that more than one of the tensors shows."""
    seen: dict[int, int] = {}
    for tensor in tensors:
        key = tensor.untyped_storage()._cdata
        seen[key] = seen.get(key, 0) + 1
    return {key for key, times in seen.items() if times > 1}


def _replay(instruction: Instruction, slot: int) -> Callable[[torch.Tensor, Resolve], torch.Tensor]:
    """The view call, to be made on another tensor."""
    index = instruction.outs.index(slot)

    def step(tensor: torch.Tensor, resolve: Resolve) -> torch.Tensor:
        if any(isinstance(leaf, Ref) for leaf in instruction.args[1:]):
            raise UnsupportedError("view op with a tensor argument", str(instruction.op))
        args = map_leaves(resolve, instruction.args[1:])
        result = instruction.op(tensor, *args, **map_leaves(resolve, instruction.kwargs))
        return result[index] if instruction.returns_list else result

    return step

