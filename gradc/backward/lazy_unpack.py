"""The backward of a segment whose saved tensors hooks packed: each is unpacked where the node that saved it runs.

    InTurn(tape, capacity): run(BackwardKey, HookedCall, compile) -> one gradient or None per exit

Hooks may give back what is laid out otherwise than what they packed. The first call with a key finds out, and the backward is
compiled for that, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc.analysis.segments import Segment
from gradc.backward.bounded_cache import BoundedCache
from gradc.backward.key import BackwardKey
from gradc.backward.trace import Backward, Layouts
from gradc.errors import UnsupportedError
from gradc.ir.metadata import tensor_meta
from gradc.ir.sizes import Sizes
from gradc.ir.values import TensorMeta
from gradc.journal import Fallback
from gradc.nodes.packing import unpacking
from gradc.tape.tape import Tape

Run = Callable[[list[Any]], list[Any]]
Compile = Callable[[Segment, BackwardKey, Layouts], tuple[Backward, Run] | Fallback]


class Unpacked:
    """What the hooks give back: (position in ``Segment.saved``) -> the tensor. While it ``keeps``, each is asked for once."""

    def __init__(self, unpack: Callable[[int], torch.Tensor]) -> None:
        self._unpack, self._kept = unpack, dict[int, torch.Tensor]()
        self.keeps = True

    def __call__(self, position: int) -> torch.Tensor:
        tensor = self._kept[position] if position in self._kept else self._unpack(position)
        if self.keeps:
            self._kept[position] = tensor
        return tensor


@dataclasses.dataclass(frozen=True)
class HookedCall:
    """One call of the backward of ``segment``."""

    segment: Segment
    sizes: Sizes
    unpacked: Unpacked
    tangents: Sequence[torch.Tensor | None]


class _OtherLayoutError(Exception):
    """What was unpacked is laid out otherwise than the backward was compiled for."""


@dataclasses.dataclass
class _Seen:
    """What hooks gave back on the last call with a key; ``is_sure`` once a call has met nothing else."""

    layouts: Layouts = ()
    is_sure: bool = False


class InTurn:
    """See the module's docstring. ``compile`` returns the reason where it cannot; it is not kept, since it keeps this."""

    def __init__(self, tape: Tape, capacity: int) -> None:
        self._tape = tape
        self._packed: dict[int, TensorMeta | None] = {}  # number of a saved tensor -> its layout
        self._seen: BoundedCache[tuple[int, BackwardKey], _Seen] = BoundedCache(capacity, tape.lock)
        self._compiled: BoundedCache[tuple[int, BackwardKey, Layouts], tuple[Backward, Run] | Fallback] = BoundedCache(
            capacity, tape.lock
        )

    def run(self, key: BackwardKey, call: HookedCall, compile: Compile) -> list[Any]:
        """See the module's docstring.

        Raises:
            UnsupportedError: if it cannot be compiled for what hooks give back.
        """
        seen = self._seen.get((call.segment.number, key), _Seen)
        call.unpacked.keeps = not seen.is_sure
        try:
            grads = self._run(key, call, compile, seen.layouts)
        except _OtherLayoutError:
            call.unpacked.keeps, seen.is_sure = True, False
            seen.layouts = self._layouts_of(key, call, compile, seen.layouts)
            grads = self._run(key, call, compile, seen.layouts)
        seen.is_sure = True
        return grads

    def _run(self, key: BackwardKey, call: HookedCall, compile: Compile, layouts: Layouts) -> list[Any]:
        backward, run = self._compiled_for(key, call.segment, compile, layouts)
        expected = dict(layouts)

        def give(position: int) -> torch.Tensor:
            tensor = call.unpacked(position)
            if not self._is_as(expected.get(position), position, tensor, call):
                raise _OtherLayoutError
            return tensor

        with unpacking(give):
            grads = run([*(tangent for tangent in call.tangents if tangent is not None), *call.sizes.values.values()])
        return backward.as_in_eager(grads)

    def _compiled_for(self, key: BackwardKey, segment: Segment, compile: Compile, layouts: Layouts) -> tuple[Backward, Run]:
        found = self._compiled.get((segment.number, key, layouts), lambda: compile(segment, key, layouts))
        if isinstance(found, Fallback):
            raise UnsupportedError(found.kind, found.detail, found.where)
        return found

    def _layouts_of(self, key: BackwardKey, call: HookedCall, compile: Compile, layouts: Layouts) -> Layouts:
        """What the hooks give back now, where that is not as it was packed."""
        backward, _ = self._compiled_for(key, call.segment, compile, layouts)
        found = []
        for position in backward.saved:
            tensor = call.unpacked(position)
            if not self._is_as(None, position, tensor, call):
                meta = tensor_meta(tensor) if is_plain(tensor) else None
                if meta is None or self._tape.symints or tensor.device != self._fake_of(position, call).device:
                    raise UnsupportedError("saved-tensors hook that gives back another layout")
                found.append((position, dataclasses.replace(meta, offset=0)))
        return tuple(found)

    def _is_as(self, expected: TensorMeta | None, position: int, tensor: torch.Tensor, call: HookedCall) -> bool:
        """``expected`` is None for what was packed."""
        if call.segment.saved[position] in call.segment.on_ctx:
            return True
        expected = expected or self._packed_meta(call.segment.saved[position])
        return expected is not None and is_alike(expected, tensor, call.sizes)

    def _packed_meta(self, index: int) -> TensorMeta | None:
        if index not in self._packed:  # to ask a fake tensor takes 50 us
            self._packed[index] = tensor_meta(self._tape.saved[index].fake)
        return self._packed[index]

    def _fake_of(self, position: int, call: HookedCall) -> torch.Tensor:
        return self._tape.saved[call.segment.saved[position]].fake


def is_plain(tensor: torch.Tensor) -> bool:
    """True for what a Program takes: strided, of no subclass, without lazy bits."""
    is_one = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return is_one and not (tensor.is_conj() or tensor.is_neg())


def is_alike(packed: TensorMeta, tensor: torch.Tensor, sizes: Sizes) -> bool:
    """True if the tensor is laid out as ``packed``."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    if (packed.dtype, packed.device) != (tensor.dtype, tensor.device):
        return False
    if (packed.is_conj, packed.is_neg) != (tensor.is_conj(), tensor.is_neg()):
        return False
    return [sizes(number) for number in (*packed.shape, *packed.stride)] == [*tensor.shape, *tensor.stride()]
