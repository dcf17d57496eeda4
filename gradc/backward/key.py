"""The key of a compiled backward: all that can change what it does, besides the values of tensors.

    key_of:      (segment, tangents, needed) -> BackwardKey, in the state that there is now
    nominal_key: (tape, segment, autocast) -> the key of the usual case
    native_key:  what the extension tells of a key that it holds -> BackwardKey
    closest:     (earlier keys, key) -> the one that differs least, and in what

A key prints itself in words. The native nodes hold the same keys as numbers (nodes/csrc/key.h); only what they have not met
comes here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch

from gradc.ambient import Ambient, AutocastState, ambient, autocast_state
from gradc.analysis.segments import Segment
from gradc.errors import UnsupportedError
from gradc.ir.metadata import symbolic_number, tensor_meta
from gradc.ir.values import Sym, TensorMeta
from gradc.tape.tape import Edge, Tape
from gradc.torch_private.autograd import input_metadata
from gradc.torch_private.modes import is_batched


@dataclasses.dataclass(frozen=True)
class BackwardKey:
    """Everything that can change what a segment's backward does, besides the values of tensors.

    Attributes:
        ambient: autocast and the global modes in which it runs.
        tangents: layout of each incoming gradient; None for one that is not defined.
        needed: for each exit, whether its gradient is wanted.
        adds_up: the first of the exits to one primal brings the sum of their gradients, in the engine's order.
        stealable: positions of gradients that the engine would write a sum over, where it tells: nobody else holds them.
    """

    ambient: Ambient
    tangents: tuple[TensorMeta | None, ...]
    needed: tuple[bool, ...]
    adds_up: bool = False
    stealable: tuple[int, ...] = ()

    def parts(self) -> dict[str, str]:
        """What the key is made of: name -> value, in words."""
        modes = {field.name: _in_words(getattr(self.ambient, field.name)) for field in dataclasses.fields(self.ambient)}
        gradients = {f"gradient {i}": _in_words(tangent) for i, tangent in enumerate(self.tangents)}
        wanted = [str(position) for position, is_needed in enumerate(self.needed) if is_needed]
        return (
            modes
            | gradients
            | {
                "needed gradients": f"{' '.join(wanted) or 'none'} of {len(self.needed)}",
                "adding up here": _in_words(self.adds_up),
                "gradients that sums are written over": " ".join(map(str, self.stealable)) or "none",
            }
        )

    def __str__(self) -> str:
        """``autocast: off, is_deterministic: no, ..., gradient 0: f32[3][1]cpu, needed gradients: 0 of 1, ...``"""
        return ", ".join(f"{name}: {value}" for name, value in self.parts().items())


def _in_words(value: Any) -> str:
    match value:
        case AutocastState(enabled):
            return " ".join(f"{device} {dtype}" for device, dtype in enabled) or "off"
        case bool():
            return "yes" if value else "no"
        case None:
            return "undefined"
    return str(value)


def closest(earlier: Iterable[BackwardKey], key: BackwardKey) -> tuple[BackwardKey, list[str]]:
    """The key among ``earlier`` that differs least from ``key``, and in what; of several, the first."""
    return min(((other, differences(other, key)) for other in earlier), key=lambda found: len(found[1]))


def differences(old: BackwardKey, new: BackwardKey) -> list[str]:
    """What sets two keys apart, one phrase each."""
    before, now = old.parts(), new.parts()
    names = dict.fromkeys((*before, *now))
    pairs = ((name, before.get(name, "not there"), now.get(name, "not there")) for name in names)
    return [f"{name} was {was}, is {is_}" for name, was, is_ in pairs if was != is_]


# ---- reading a key off a call


def key_of(
    segment: Segment, tangents: Sequence[torch.Tensor | None], needed: Sequence[bool], stealable: Sequence[int] = ()
) -> BackwardKey:
    """The key of a call in the state that there is now.

    Raises:
        UnsupportedError: for a gradient that no Program takes.
    """
    metas = tuple(
        None if tangent is None else _tangent_meta(edge, tangent)
        for edge, tangent in itertools.zip_longest(segment.inlets(len(tangents)), tangents)
    )
    return BackwardKey(ambient(autocast_state()), metas, tuple(needed), stealable=tuple(stealable))


def native_key(fields: Mapping[str, Any]) -> BackwardKey:
    """The key that a native node holds: its numbers say the same as a key that is read off the call here, all sizes plain."""
    state = Ambient(**{**fields["ambient"], "autocast": AutocastState(fields["ambient"]["autocast"])})
    tangents = tuple(form and _native_meta(*form) for form in fields["tangents"])
    return BackwardKey(state, tangents, tuple(fields["needed"]), fields["adds_up"], tuple(fields["stealable"]))


def _native_meta(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], device: torch.device) -> TensorMeta:
    return TensorMeta(dtype, shape, stride, 0, device)


def nominal_key(tape: Tape, segment: Segment, autocast: AutocastState) -> BackwardKey:
    """The key of the usual case: every gradient defined, laid out as its value, and wanted."""
    with tape.fake_mode:
        metas = tuple(_nominal_tangent(*edge) for edge in segment.entries[: segment.num_tangents])
    undefined = (None,) * (len(segment.entries) - segment.num_tangents)
    return BackwardKey(ambient(autocast), metas + undefined, (True,) * len(segment.exits))


def _nominal_tangent(node: Any, number: int) -> TensorMeta:
    """The layout of a gradient like the value: a fresh contiguous tensor."""
    expected = input_metadata(node, number)
    return _meta(torch.empty(expected.shape, dtype=expected.dtype, device=expected.device))


def _tangent_meta(edge: Edge, tangent: torch.Tensor) -> TensorMeta:
    """The layout of a tangent, with symbolic sizes where the tape's are symbolic."""
    if type(tangent) is not torch.Tensor and type(tangent) is not torch.nn.Parameter:
        raise UnsupportedError("gradient of a tensor subclass", type(tangent).__name__)
    if is_batched(tangent):  # its ops are other ops: a product of it is one of all samples
        raise UnsupportedError("function transform during backward")
    if tangent._is_zerotensor():
        raise UnsupportedError("gradient that is a lazy zero")
    meta = dataclasses.replace(_meta(tangent), offset=0)
    node, number = edge
    shape = tuple(symbolic_number(size) for size in input_metadata(node, number).shape)
    if not any(isinstance(size, Sym) for size in shape):
        return meta
    return dataclasses.replace(meta, shape=shape, stride=_symbolic_stride(shape, tangent))


def _symbolic_stride(shape: tuple[Any, ...], tangent: torch.Tensor) -> tuple[Any, ...]:
    """The strides of a tangent: over the symbols of its shape if it is dense but for expanded dimensions, or as they are."""
    sizes, strides = tangent.size(), tangent.stride()
    order = sorted(range(tangent.dim()), key=lambda d: (strides[d], sizes[d]))
    if tangent.is_contiguous():
        order = list(reversed(range(tangent.dim())))
    found: list[Any] = list(strides)
    number, expr = 1, sympy.Integer(1)
    for dim in order:
        if strides[dim] == 0 and sizes[dim] != 1:
            continue
        if strides[dim] == number:
            found[dim] = int(expr) if expr.is_number else Sym(expr)
        elif sizes[dim] != 1:
            return strides
        size = shape[dim]
        number *= sizes[dim]
        expr = expr * (size.expr if isinstance(size, Sym) else size)
    return tuple(found)


def _meta(tensor: torch.Tensor) -> TensorMeta:
    meta = tensor_meta(tensor)
    if meta is None:
        raise UnsupportedError("gradient that is not strided", str(tensor.layout))
    return meta
