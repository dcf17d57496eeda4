"""Views on a tape: which tensors are views, and of what; and those whose base was written into after they were made.

    ViewRecorder: a Recorder under which such views get the nodes that they get in eager
    Views:        Tape -> how each view is made
    view_again:   (view call, Tape) -> the same view of another tensor

When a view whose base was written into is next used, torch makes its node anew, from the base as it is now: in eager by one
as_strided, whatever view ops had made it. A fake tensor keeps those ops, and torch would make it by them again, with gradients
laid out otherwise. So a view forgets them when its base is written into.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from gradc import native
from gradc.errors import UnsupportedError
from gradc.ir.ops import NOT_STRIDED, is_view_op
from gradc.ir.recorder import Recorder
from gradc.ir.values import Instruction, Ref, leaves, map_leaves
from gradc.tape.tape import Tape
from gradc.torch_private.autograd import is_made_under_no_grad, is_view, storage_key

_aten = torch.ops.aten
ViewStep = tuple[Instruction, int]  # a view call, and the slot of the result that counts
Resolve = Callable[[Any], Any]  # a number of the Program's -> the number in a call
Step = Callable[[torch.Tensor, Resolve], torch.Tensor]


class ViewRecorder(Recorder):
    """See the module's docstring.

    Attributes:
        view_calls: slot of each view -> the call that made it.
        rewritten: slots of the views whose memory was written into after they were made.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.view_calls: dict[int, Instruction] = {}
        self.rewritten: set[int] = set()
        self._views: dict[int, list[tuple[int, torch.Tensor]]] = collections.defaultdict(list)
        self._not_strided: set[int] = set()

    def _note(self, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        super()._note(op, args, kwargs, result)
        call = self.instructions[-1]
        if op._schema.is_mutable:
            for storage in {_storage(self.tensor_of(slot)) for slot in call.writes}:
                for view in self._views[storage]:
                    self._rewrite(*view, call.where)
        elif is_view_op(op):
            is_not_strided = op in NOT_STRIDED or call.reads[0] in self._not_strided
            for slot, tensor in zip(call.outs, leaves(result), strict=True):
                if slot is not None:
                    self.view_calls[slot] = call
                    self._views[_storage(tensor)].append((slot, tensor))
                    self._not_strided.update({slot} if is_not_strided else ())

    def _rewrite(self, slot: int, view: torch.Tensor, where: str) -> None:
        if slot in self._not_strided or not is_view(view):
            return
        if native.is_built():
            native.extension.forget_view_function(view)
        elif view._base is not None and view._base.requires_grad:
            raise UnsupportedError("view of what is written into, without the extension", where=where)
        self.rewritten.add(slot)


@dataclasses.dataclass(frozen=True)
class Views:
    """Which tensors of a tape are views, and of what."""

    tape: Tape

    def path_to(self, out: torch.Tensor) -> tuple[torch.Tensor, list[ViewStep]]:
        """The tensor that ``out`` is a view of, and the view calls that lead from it to ``out``, as its node has it."""
        slot = self.tape.slot_of(out)
        if slot is None:
            raise UnsupportedError("output that no recorded call made")
        made, steps = self.tape.view_calls, []
        while slot in made:
            steps.append((made[slot], slot))
            slot = made[slot].args[0].slot
            between = self.tape.tensor_of(slot)
            if slot in made and between.requires_grad and not is_recorded(between):
                raise UnsupportedError("view of a view made under no_grad")
        return (self.tape.tensor_of(slot) if steps else out), self._as_rewritten(slot, steps[::-1])

    def _as_rewritten(self, root: int, steps: list[ViewStep]) -> list[ViewStep]:
        """The steps, in which one as_strided stands for those up to the last view that was rewritten."""
        is_detached = any(call.op is _aten.detach.default for call, _ in steps)
        last = max((i for i, (_, slot) in enumerate(steps) if self._has_new_node(slot)), default=-1)
        if last < 0 or is_detached:
            return steps
        call, slot = steps[last]
        meta = self.tape.program.slots[slot].meta
        assert meta is not None, "a strided view"
        if self.tape.tensor_of(root).storage_offset() != 0:
            raise UnsupportedError("view, written into, of what does not begin where its memory does", where=call.where)
        args = (Ref(root), meta.shape, meta.stride, meta.offset)
        new = dataclasses.replace(call, op=_aten.as_strided.default, args=args, kwargs={}, outs=(slot,), returns_list=False)
        return [(new, slot), *steps[last + 1 :]]

    def _has_new_node(self, slot: int) -> bool:
        return slot in self.tape.rewritten and is_recorded(self.tape.tensor_of(slot))

    def between(self, out: torch.Tensor) -> list[torch.Tensor]:
        """The views that lie between ``out`` and what it is a view of."""
        _, steps = self.path_to(out)
        return [self.tape.tensor_of(slot) for _, slot in steps[:-1]]


def is_recorded(out: torch.Tensor) -> bool:
    """True if the tape knows how ``out`` was made, so that a gradient with respect to it goes on."""
    return out.grad_fn is not None


def is_outdated(view: torch.Tensor) -> bool:
    """True if the node of ``view`` will be made anew when it is next asked for."""
    return native.is_built() and native.extension.is_view_outdated(view)


def outdate(view: torch.Tensor) -> torch.Tensor:
    """Make it so. Refused without the extension."""
    native.extension.outdate_view(view)
    return view


def as_view_of(base: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, with its own history, as a view of what it shares memory with. Refused without the extension."""
    return native.extension.as_view_of(base, tensor)


def view_again(made: ViewStep, tape: Tape) -> Step:
    """The view call, to be made on another tensor, under its grad mode: what a view may be used for depends on that."""
    instruction, slot = made
    index = instruction.outs.index(slot)
    mode = not is_made_under_no_grad(tape.tensor_of(slot))
    is_late = slot in tape.outdated

    @torch.set_grad_enabled(mode)
    def step(tensor: torch.Tensor, resolve: Resolve) -> torch.Tensor:
        if any(isinstance(leaf, Ref) for leaf in instruction.args[1:]):
            raise UnsupportedError("view op with a tensor argument", str(instruction.op))
        args = map_leaves(resolve, instruction.args[1:])
        result = instruction.op(tensor, *args, **map_leaves(resolve, instruction.kwargs))
        view = result[index] if instruction.returns_list else result
        return outdate(view) if is_late else view

    return step


def _storage(tensor: torch.Tensor) -> int:
    return storage_key(tensor)
