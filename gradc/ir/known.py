"""Which tensor is which slot while calls are recorded, and what the slots are called.

    KnownTensors: tensor -> slot, by identity or by memory and layout;  slot -> tensor
    Names:        any text -> a name that nothing else has

Every question takes the same time however much was recorded.
"""

from __future__ import annotations

import keyword
import re
from typing import Any

import torch

from gradc.torch_private.autograd import storage_key

RESERVED = frozenset({"args", "flatten", "math", "set_autocast", "torch"})  # what the printed text means by these names


class KnownTensors:
    """The tensors that have slots. Holds each of them, so that none can be taken for another that came after it."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[int, torch.Tensor]] = {}
        self._first: dict[int, torch.Tensor] = {}
        self._by_handle: dict[tuple[Any, ...], list[tuple[int, torch.Tensor]]] = {}
        self._not_indexed: list[tuple[int, torch.Tensor]] = []

    def add(self, slot: int, tensor: torch.Tensor) -> None:
        """From here on ``tensor`` is ``slot``."""
        self._by_id[id(tensor)] = slot, tensor
        self._first.setdefault(slot, tensor)
        self._not_indexed.append((slot, tensor))

    def moved(self, slot: int) -> None:
        """A call changed the tensor of ``slot`` in place, and perhaps its memory or layout."""
        self._not_indexed.append((slot, self._first[slot]))

    def slot_of(self, tensor: torch.Tensor) -> int | None:
        known = self._by_id.get(id(tensor))
        return known[0] if known else None

    def tensor_of(self, slot: int) -> torch.Tensor:
        """The tensor that ``slot`` first stood for."""
        return self._first[slot]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(tensor for _, tensor in self._by_id.values())

    def slot_of_alias(self, tensor: torch.Tensor) -> int | None:
        """The slot of the first tensor with the memory and layout of ``tensor``."""
        for slot, known in self._not_indexed:
            self._by_handle.setdefault(handle_of(known), []).append((slot, known))
        self._not_indexed.clear()
        handle = handle_of(tensor)
        return next((slot for slot, known in self._by_handle.get(handle, ()) if handle_of(known) == handle), None)

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


def handle_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What two handles of one value have in common: memory and layout.

    Not for ``ir.aliases`` to say: these are handles that no recorded call made.
    """
    if tensor.layout is not torch.strided:
        return (id(tensor),)
    storage = storage_key(tensor)
    layout = (*tensor.shape, *tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg())
    return (storage, tensor.dtype, *(str(part) if isinstance(part, torch.SymInt) else part for part in layout))


class Names:
    """Names of slots: Python identifiers, each given once."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}  # name -> the number to try next, when it is asked for again

    def unique(self, text: str, is_tensor: bool) -> str:
        """A name like ``text`` that nothing else has, numbered if need be."""
        name = re.sub(r"\W+", "_", text).strip("_") or "value"
        if name[0].isdigit() or keyword.iskeyword(name) or name in RESERVED or (is_tensor and re.fullmatch(r"[su]\d+", name)):
            name = f"v_{name}"  # no Python name, or taken: s27 is a symbol
        number = self._given.get(name, 0)
        unique = f"{name}_{number}" if number else name
        while unique in self._given:
            number += 1
            unique = f"{name}_{number}"
        self._given[name] = number + 1
        self._given.setdefault(unique, 1)
        return unique
