"""What the calls of a Program are made of: slots and what is known of their tensors, arguments, and the calls themselves.

Slot, TensorMeta: a value, and the layout of its tensor      Ref, Sym: arguments, a slot's value or an expression
Instruction:      one call                                   leaves, map_leaves, renamed: over trees of arguments
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sympy
import torch

from gradc.ambient import NO_AUTOCAST, AutocastState

SHORT_DTYPE = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.complex64: "c64", torch.complex128: "c128", torch.int64: "i64", torch.int32: "i32",
    torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b8",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Ref:
    """An argument that is the value of a slot."""

    slot: int


@dataclasses.dataclass(frozen=True)
class Sym:
    """An argument that is an expression over symbols: a size, a stride, a float or a bool that depends on one."""

    expr: sympy.Basic
    kind: type = int


@dataclasses.dataclass(frozen=True)
class TensorMeta:
    """What is known of a slot's tensor when captured. Sizes and strides are ints, or Sym where symbolic.

    ``is_conj`` and ``is_neg`` tell of a lazy conjugate or negative: what is in memory is the conjugate, or the negative.
    """

    dtype: torch.dtype
    shape: tuple[int | Sym, ...]
    stride: tuple[int | Sym, ...]
    offset: int | Sym
    device: torch.device
    is_conj: bool = False
    is_neg: bool = False

    def __str__(self) -> str:
        def dims(values: tuple[int | Sym, ...]) -> str:
            return "[" + ", ".join(str(v.expr) if isinstance(v, Sym) else str(v) for v in values) + "]"

        lazy = " conjugate" * self.is_conj + " negative" * self.is_neg
        return f"{SHORT_DTYPE.get(self.dtype, str(self.dtype))}{dims(self.shape)}{dims(self.stride)}{self.device}{lazy}"


@dataclasses.dataclass(frozen=True)
class Slot:
    """One value of a Program.

    ``name`` is unique and a Python identifier (``addmm_3``); ``label`` says what the value is to the user
    ("layers.0.weight", "grad of layers.0.weight", "saved by TanhBackward0") and may be empty;
    ``meta`` is None for a slot that holds an int or float, or for a call that returns nothing.
    """

    name: str
    meta: TensorMeta | None = None
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One call: ``outs = op(*args, **kwargs)``.

    ``op`` is a torch.ops overload. ``args`` and ``kwargs`` are trees (tuple, list, dict) whose leaves are Ref, Sym or
    plain constants. ``outs`` are the slots of the tensors returned, flattened in order; None for one that is not a
    tensor. ``autocast`` is what the kernel itself sees when it calls further ops. ``where`` is the user's line, and
    ``origin`` the autograd node a backward call comes from.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int | None, ...]
    returns_list: bool = False
    autocast: AutocastState = NO_AUTOCAST
    where: str = ""
    origin: str = ""

    @property
    def is_nested(self) -> bool:
        """True if the op returns lists of tensors among other results: ``outs`` is then flatter than what it returns."""
        returns = self.op._schema.returns
        return len(returns) > 1 and any(isinstance(result.type, torch.ListType) for result in returns)

    @functools.cached_property
    def reads(self) -> tuple[int, ...]:
        """Slots read, in argument order, with repeats."""
        return tuple(leaf.slot for leaf in leaves((self.args, self.kwargs)) if isinstance(leaf, Ref))

    @property
    def writes(self) -> tuple[int, ...]:
        """Slots whose tensors the call mutates, by the op's schema."""
        schema = self.op._schema
        if not schema.is_mutable:
            return ()
        found: list[int] = []
        for position, argument in enumerate(schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = self.args[position] if position < len(self.args) else self.kwargs.get(argument.name)
            found += [leaf.slot for leaf in leaves(value) if isinstance(leaf, Ref)]
        return tuple(found)


def leaves(tree: Any) -> Iterator[Any]:
    """The leaves of an argument tree, in order."""
    if not isinstance(tree, (tuple, list, dict)):
        yield tree
        return
    for item in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(item, (tuple, list, dict)):
            yield from leaves(item)
        else:
            yield item


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """``tree`` with every leaf replaced by ``function(leaf)``; tuples stay tuples and lists lists."""
    if isinstance(tree, tuple):
        return tuple(map_leaves(function, item) for item in tree)
    if isinstance(tree, list):
        return [map_leaves(function, item) for item in tree]
    if isinstance(tree, dict):
        return {key: map_leaves(function, item) for key, item in tree.items()}
    return function(tree)


def renamed(tree: Any, slots: Mapping[int, int]) -> Any:
    """``tree`` with the value of another slot in place of each slot that ``slots`` has."""
    return map_leaves(lambda leaf: Ref(slots.get(leaf.slot, leaf.slot)) if isinstance(leaf, Ref) else leaf, tree)
