"""Record the calls of a backward pass on its real tensors, and notice what cannot stand in a recording.

LiveRecorder: a Recorder that knows the walked tensors, and what nodes that run live returned
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from gradc import native
from gradc.ambient import autocast_set_to
from gradc.ir.known import handle_of
from gradc.ir.metadata import tensor_meta
from gradc.ir.ops import EXPLICIT_OFFSET, depends_on_data
from gradc.ir.recorder import Recorder
from gradc.ir.values import Instruction


@dataclasses.dataclass(frozen=True)
class WrappedNumber:
    """A number that a node multiplies or divides by, and the walked tensor that wraps it."""

    tensor: torch.Tensor
    value: Any


class LiveRecorder(Recorder):
    """A Recorder of real tensors that says when a call cannot stand in a recording.

    ``taint`` is the reason: the call's result depends on data, or it reads a tensor that nobody knows how to find again.
    ``number`` is the one that the present node multiplies or divides by, if any.
    """

    def __init__(self, place: Any) -> None:
        super().__init__("compiled_autograd", lift=self._find, place=place)
        self.taint = ""
        self.has_offsets = False
        self.number: WrappedNumber | None = None
        self._inputs: dict[tuple[Any, ...], int] = {}
        self._returned: dict[tuple[Any, ...], int] = {}

    def add_walked(self, tensor: torch.Tensor, name: str) -> int:
        slot = self.add_input(tensor, name)
        self._inputs.setdefault(handle_of(tensor), slot)
        return slot

    def walked_slot(self, tensor: torch.Tensor) -> int | None:
        """The slot of the first walked tensor with this memory and layout."""
        return self._inputs.get(handle_of(tensor))

    def add_returned(self, tensor: torch.Tensor, name: str) -> int:
        """A slot for what a boundary returned."""
        slot = self._new_slot(name, tensor_meta(tensor), "")
        self.known.add(slot, tensor)
        self.note_returned(tensor, slot)
        return slot

    def note_returned(self, tensor: torch.Tensor, slot: int) -> None:
        """From here on the memory of ``tensor`` is that of ``slot``, which a boundary returned."""
        self._returned[handle_of(tensor)] = slot

    def slot(self, tensor: torch.Tensor | None) -> int:
        """The slot of a value; -1 for an undefined gradient."""
        if tensor is None:
            return -1
        known = self.slot_of(tensor)
        return self._find(tensor) if known is None else known

    def _note(self, op: Any, args: Any, kwargs: Any, result: Any) -> Instruction:
        if self.number is not None:
            args = tuple(self._number_as_tensor(value, parameter) for value, parameter in zip(args, op._schema.arguments))
        return super()._note(op, args, kwargs, result)

    def _number_as_tensor(self, value: Any, parameter: Any) -> Any:
        """The tensor that a number was before the mode unwrapped it: a number stands where the schema wants a tensor."""
        if not isinstance(value, (bool, int, float)) or not isinstance(parameter.real_type, torch.TensorType):
            return value
        assert self.number is not None
        if value != self.number.value:
            self.taint = self.taint or "number of unknown origin"
        return self.number.tensor

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(op, types, args, kwargs)
        if depends_on_data(op):
            self.taint = self.taint or f"result that depends on data ({op})"
        if op._schema.name in EXPLICIT_OFFSET:
            self.has_offsets = True
        return result

    def _call(self, op: Any, args: Any, kwargs: Any) -> Any:
        seen = self.autocast.seen_by(op)
        if not seen.enabled:
            return op(*args, **kwargs)
        with autocast_set_to(seen):  # a mode runs with autocast off; in eager, what the kernel calls is cast
            return op(*args, **kwargs)

    def _result(self, op: Any, leaf: Any) -> int | None:
        if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
            self.taint = self.taint or "tensor that is not strided"
        return super()._result(op, leaf)

    def _find(self, tensor: torch.Tensor) -> int:
        """The slot of a tensor that came about without a recorded call: another handle, or a number's wrapper."""
        slot = self._find_alias(tensor)
        if slot is None and native.extension.is_wrapped_number(tensor):  # made from a constant of the node, which is in the key
            return self.add_constant(tensor)
        if slot is None:
            self.taint = self.taint or "tensor of unknown origin"
            slot = self.add_phantom(tensor)
        self.known.add(slot, tensor)
        return slot

    def _find_alias(self, tensor: torch.Tensor) -> int | None:
        if tensor.layout is not torch.strided:
            return None
        handle = handle_of(tensor)
        known, returned = self._inputs.get(handle), self._returned.get(handle)
        if known is None:
            known = self.slot_of_alias(tensor)
        if known is not None and returned is not None and known != returned:
            return None  # one memory now, but a hook may return another tensor next time
        return returned if known is None else known
