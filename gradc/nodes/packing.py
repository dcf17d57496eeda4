"""The user's saved-tensors hooks around a call of a region: each is called where eager calls it, between the Program's calls.

    pack_call: (number of a saved tensor, ...) -> a call for the forward Program
    Packing(pack, unpack, numbers): with packing.forward(): ...      what the call packs; inside, live nodes take it
    UNPACK: the op of a call in a backward Program; with unpacking(give): ...      inside, it returns give(position)

A saved tensor that only backward needs is thus free as soon as it is packed, as in eager. In its place the forward returns an
empty tensor, which gets the history that a gradient of it would follow. In backward no tensor is unpacked before its node runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from gradc.ir.values import Instruction, Ref
from gradc.torch_private.modes import DispatchKeys

_library = torch.library.Library("gradc_saving", "DEF")
_library.define("pack(Tensor value, int number, bool is_argument, bool requires_grad) -> Tensor")
_library.define("unpack(int position) -> Tensor")
PACK, UNPACK = torch.ops.gradc_saving.pack.default, torch.ops.gradc_saving.unpack.default

Give = Callable[[int], torch.Tensor]


class _Present(threading.local):
    """The calls that this thread is making, of a forward and of a backward."""

    packing: Packing | None = None
    give: Give | None = None


_present = _Present()


class Packing:
    """What one call packs. ``numbers``: those of the saved tensors that live nodes will own, in the order in which they ask."""

    def __init__(self, pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], Any], numbers: Sequence[int]) -> None:
        self._pack, self._unpack, self._numbers = pack, unpack, numbers
        self._wanted, self._packed = frozenset(numbers), dict[int, Any]()
        self._around = DispatchKeys()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """While inside, the thread's Programs pack, and what nodes save is what was packed, in its place."""
        before, _present.packing = _present.packing, self
        numbers = iter(self._numbers)
        try:
            with saved_tensors_hooks(lambda _: self._packed.pop(next(numbers)), self._unpack):
                yield
        finally:
            _present.packing = before

    def pack(self, number: int, tensor: torch.Tensor, requires_grad: bool | None) -> None:
        """``requires_grad`` is None for an argument, which the hook gets as it is."""
        with self._around.again(), torch.no_grad():
            packed = self._pack(tensor if requires_grad is None else tensor.detach().requires_grad_(requires_grad))
        if number in self._wanted:  # in eager the others go with their nodes
            self._packed[number] = packed


def pack_call(value: int, out: int, number: int, is_argument: bool, requires_grad: bool) -> Instruction:
    """Packs the tensor in slot ``value``, and makes an empty one in slot ``out``."""
    return Instruction(PACK, (Ref(value), number, is_argument, requires_grad), {}, (out,))


@contextmanager
def unpacking(give: Give) -> Iterator[None]:
    """While inside, the thread's Programs unpack what ``give`` gives."""
    before, _present.give = _present.give, give
    try:
        yield
    finally:
        _present.give = before


def _pack(value: torch.Tensor, number: int, is_argument: bool, requires_grad: bool) -> torch.Tensor:
    assert _present.packing is not None, "only a call that packs runs a Program that does"
    _present.packing.pack(number, value, None if is_argument else requires_grad)
    return value.new_empty(0)


def _unpack(position: int) -> torch.Tensor:
    assert _present.give is not None, "only a call that unpacks runs a Program that does"
    return _present.give(position)


def _unknown(position: int) -> torch.Tensor:
    raise NotImplementedError("what a hook unpacks is known when it runs")


_library.impl("pack", _pack, "CompositeExplicitAutograd")
_library.impl("unpack", _unpack, "CompositeExplicitAutograd")
torch.library.register_fake("gradc_saving::pack", lambda value, *_: value.new_empty(0), lib=_library)
torch.library.register_fake("gradc_saving::unpack", _unknown, lib=_library)
