"""Record the ATen calls that run below autograd, in order, as a Program.

    with Recorder("forward") as recorder: ...      every call inside is made, and noted
    recorder.program(outputs) -> Program

Serves both captures: on fake tensors ahead of time, on real ones when the live backward is captured. What is noted, and which
tensor is which slot, is ProgramBuilder's; here is what is called, and how.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradc.ambient import autocast_state
from gradc.errors import UnsupportedError
from gradc.ir.autocast import CallerAutocast
from gradc.ir.builder import ProgramBuilder
from gradc.ir.layouts import corrected
from gradc.ir.metadata import tensor_meta
from gradc.ir.ops import PLAIN_META, PLAIN_META_OF_CONTIGUOUS, is_metadata_query
from gradc.ir.sums import EngineSums, does_layout_tell
from gradc.ir.values import Instruction, leaves
from gradc.torch_private.autograd import set_version
from gradc.torch_private.fakes import call_on_meta, has_symbolic_sizes, is_fake, keeping_lazy_zeros, python_meta_kernels

_aten = torch.ops.aten
_device = torch.ops.prim.device.default
Place = Callable[[], tuple[str, str]]  # where the present call comes from: (user's line, autograd node)
StandIn = Callable[[Any, Any, Any], Any]  # of (op, args, kwargs): called in place of the op


class Recorder(TorchDispatchMode, ProgramBuilder):
    """A dispatch mode that notes each call in the Program that it builds.

    Arguments:
        name, lift: as of ProgramBuilder.
        place: called for each instruction.

    Attributes:
        autocast: what is in force around the calls.
        sums: what the engine adds up, where it runs nodes.
    """

    def __init__(self, name: str, lift: Callable[[torch.Tensor], int] | None = None, place: Place = lambda: ("", "")) -> None:
        TorchDispatchMode.__init__(self)
        ProgramBuilder.__init__(self, name, lift)
        self.autocast = CallerAutocast(autocast_state())
        self.sums = EngineSums()
        self._place = place
        self._stand_in: StandIn | None = None

    @contextlib.contextmanager
    def intercepting(self, stand_in: StandIn) -> Iterator[None]:
        """While inside, ``stand_in`` is called in place of each op, and nothing is noted."""
        before, self._stand_in = self._stand_in, stand_in
        try:
            yield
        finally:
            self._stand_in = before

    @contextlib.contextmanager
    def placing(self, place: Place) -> Iterator[None]:
        """While inside, calls come from where ``place`` says."""
        before, self._place = self._place, place
        try:
            yield
        finally:
            self._place = before

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op is _device and is_fake(args[0]):  # asked several times for each call; the mode's own way is long
            return args[0].fake_device
        if self._stand_in is not None:
            return self._stand_in(op, args, kwargs)
        if op is _aten.lift_fresh.default and not is_fake(args[0]):
            return self._lift_fresh(args[0])
        with python_meta_kernels() if has_symbolic_sizes(leaves((args, kwargs))) else contextlib.nullcontext():
            result = self._call(op, args, kwargs)
        result = corrected(op, args, kwargs, result)
        if self.sums.is_adding and op is _aten.add.Tensor:
            return self._add_up(args, kwargs, result)
        if self._is_noted(op, result):
            self._note(op, args, kwargs, result)
        return result

    def _lift_fresh(self, literal: torch.Tensor) -> torch.Tensor:
        """A constant of the code: as it is in each run of it, and so in this one, what is made of it may be written into."""
        self.add_constant(literal)
        result = self._call(_aten.lift_fresh.default, (literal,), {})
        result = result if is_fake(result) else result.clone()
        self._note(_aten.clone.default, (literal,), {}, result)
        return result

    def _is_noted(self, op: Any, result: Any) -> bool:
        """False for what only asks for numbers.

        Raises:
            UnsupportedError: if a number depends on data.
        """
        returned = list(leaves(result))
        if any(isinstance(leaf, (torch.SymInt, torch.SymFloat)) for leaf in returned) and not is_metadata_query(op):
            raise UnsupportedError("data-dependent value", str(op), self._place()[0])
        is_called_for_effect = op._schema.is_mutable or not op._schema.returns
        return is_called_for_effect or any(isinstance(leaf, torch.Tensor) for leaf in returned)

    def _add_up(self, addends: Any, kwargs: Any, total: torch.Tensor) -> torch.Tensor:
        """Note a sum of the engine's, of which a new tensor is ``total``; the sum as the engine would leave it."""
        first, second = addends
        slot = self.slot_of(first)
        is_written_over = self.sums.is_written_over(first, slot, slot in self.declared, self.known.tensors)
        hangs_on = self.sums.hangs_on(first, slot)
        if is_written_over and does_layout_tell(first, total):
            meta, copy = tensor_meta(first), self._call(_aten.clone.default, (first,), {})
            # With gaps or overlaps, it is not written over.
            is_written_over = meta is not None and tensor_meta(copy) == dataclasses.replace(meta, offset=0)
            if is_written_over:
                self._note(_aten.clone.default, (first,), {}, copy)
                self._note(_aten.add_.Tensor, (copy, second), {}, self._call(_aten.add_.Tensor, (copy, second), {}))
                set_version(copy, first._version + 1)
                self._hang(copy, hangs_on)
                return copy
        self._note(_aten.add.Tensor, addends, kwargs, total)
        if is_written_over:
            set_version(total, first._version + 1)
        if is_written_over or hangs_on == slot:
            self._hang(total, hangs_on)
        return total

    def _hang(self, total: torch.Tensor, given: int | None) -> None:
        if given is not None and (slot := self.slot_of(total)) is not None:
            self.sums.hanging[slot] = given

    def _note(self, op: Any, args: Any, kwargs: Any, result: Any) -> Instruction:
        return self.add_call(op, args, kwargs, result, self.autocast.seen_by(op), *self._place())

    def _call(self, op: Any, args: Any, kwargs: Any) -> Any:
        made = None
        if not kwargs and (op in PLAIN_META or op in PLAIN_META_OF_CONTIGUOUS):
            made = call_on_meta(op, args, op in PLAIN_META or _are_alike_and_contiguous(args))
        if made is not None:
            return made
        with keeping_lazy_zeros(op, leaves(args)):
            return op(*args, **kwargs)


def _are_alike_and_contiguous(args: Any) -> bool:
    first, second = args
    is_usual = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and first.dtype == second.dtype
    # Python compares the first sizes even where one has more of them, and a symbol that is compared is guarded.
    is_alike = is_usual and first.dim() == second.dim() and first.shape == second.shape
    return is_alike and first.is_contiguous() and second.is_contiguous()
