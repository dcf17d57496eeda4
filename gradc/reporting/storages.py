"""The memory of tensors over a run: when each piece came, when it went, how large it was. Nothing is kept alive by looking.

Storages: note(call, tensors given, tensors made), after each call        blocks -> list of Block
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from gradc.reporting.model import Role


@dataclasses.dataclass
class Block:
    """A piece of memory that tensors share.

    Attributes:
        first: the call that made it, or that was the first to be given it; -1: it was there before all calls.
        is_made: whether that call made it.
        last: the last call that was given it, or made it.
        end: the first call before which it was gone; None: it is still there.
        name, role: what it is to the user, where that is known.
    """

    num_bytes: int
    first: int
    is_made: bool
    last: int = -1
    end: int | None = None
    name: str = ""
    role: Role | None = None

    def is_alive(self, call: int) -> bool:
        """Whether it was there when the call had returned."""
        return self.first <= call and (self.end is None or call < self.end)


class Storages:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._alive: dict[int, tuple[StorageWeakRef, Block]] = {}

    def note(self, call: int, given: Iterable[Tensor], made: Iterable[Tensor]) -> None:
        """What the call, which has returned, was given and has made."""
        self.look(call)
        for tensor in given:
            self.block_of(tensor, call, is_made=False)
        for tensor in made:
            self.block_of(tensor, call, is_made=True)

    def look(self, call: int) -> None:
        """What is gone by now was gone before ``call``."""
        for known in [key for key, (storage, _) in self._alive.items() if storage.expired()]:
            self._alive.pop(known)[1].end = call

    def block_of(self, tensor: Tensor, call: int = -1, *, is_made: bool = False) -> Block | None:
        """The memory of ``tensor``, which is new in ``call`` if it is not known; None for what has none of its own."""
        if tensor.layout is not torch.strided or tensor.is_nested:
            return None
        storage = tensor.untyped_storage()
        weak = StorageWeakRef(storage)
        known = self._alive.get(weak.cdata)
        if known is None:
            known = self._alive[weak.cdata] = (weak, Block(storage.nbytes(), call, is_made))
            self.blocks.append(known[1])
        known[1].last = call
        return known[1]
