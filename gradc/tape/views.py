"""Views on a tape: which tensors are views, and of what; and those whose base was written into after they were made.

    ViewRecorder: a Recorder that knows what shares memory, and gives such views the nodes that they get in eager
    Views:        Tape -> how each view is made
    ViewsAgain:   Tape -> its view calls, made on other tensors

When a view whose base was written into is next used, torch makes its node anew, from the base as it is now: in eager by one
as_strided, whatever view ops had made it. A fake tensor keeps those ops, and torch would make it by them again, with gradients
laid out otherwise. So a view forgets them when its base is written into.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import torch

from gradc import native
from gradc.errors import UnsupportedError
from gradc.ir.aliases import Aliases, ViewStep, declared_views
from gradc.ir.ops import MOVES_MEMORY, NOT_STRIDED
from gradc.ir.recorder import Recorder
from gradc.ir.values import Instruction, Ref, leaves, map_leaves
from gradc.tape.custom_ops import refuse_without_formula
from gradc.tape.tape import Tape
from gradc.torch_private.autograd import is_made_under_no_grad, is_view, storage_key

_aten = torch.ops.aten
Resolve = Callable[[Any], Any]  # a number of the Program's -> the number in a call
Step = Callable[[torch.Tensor, Resolve], torch.Tensor]


class ViewRecorder(Recorder):
    """See the module's docstring.

    Attributes:
        aliases: what is a view of what, and what shares memory: as the schemas of the ops say, and as the fake tensors show.
        rewritten: slots of the views whose memory was written into after they were made.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.aliases = Aliases()
        self.rewritten: set[int] = set()
        self._first_on: dict[int, int] = {}  # memory -> the first slot that was seen on it
        self._seen: set[int | None] = set()
        self._not_strided: set[int] = set()

    def _note(self, op: Any, args: Any, kwargs: Any, result: Any) -> Instruction:
        call = super()._note(op, args, kwargs, result)
        refuse_without_formula(op, leaves((args, kwargs)), leaves(result), call.where)
        if op in MOVES_MEMORY and len(self.aliases.family_of(call.reads[0])) > 1:
            raise UnsupportedError("tensor with views that is given other memory", where=call.where)
        self.aliases.note(call)
        for slot in ({*call.reads, *call.outs} - self._seen) | {*call.writes}:
            self._see_memory(slot)
        written = {slot for target in call.writes for slot in self.aliases.family_of(target)}
        for slot in sorted(written & self.aliases.view_calls.keys()):
            self._rewrite(slot, self.tensor_of(slot), call.where)
        if not call.writes:
            self._not_strided.update(
                view for view, base in declared_views(call) if op in NOT_STRIDED or base in self._not_strided
            )
        return call

    def _see_memory(self, slot: int | None) -> None:
        self._seen.add(slot)
        if slot is not None and (tensor := self.tensor_of(slot)).layout is torch.strided:
            self.aliases.share(slot, self._first_on.setdefault(storage_key(tensor), slot))

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
        root, steps = self.tape.aliases.views_to(slot)
        between = [self.tape.tensor_of(view) for _, view in steps[:-1]]
        if any(view.requires_grad and not is_recorded(view) for view in between):
            raise UnsupportedError("view of a view made under no_grad")
        return (self.tape.tensor_of(root) if steps else out), self._as_rewritten(root, steps)

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


class ViewsAgain:
    """The view calls of a tape, to be made on other tensors, each under its grad mode, by which a view may be used for less.

    What eager makes by one call is made by one here, for all the views behind it: ``split`` has one node. By a node for each
    view their gradients would be added up, and a -0.0 become 0.0.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._made: dict[int, _Made] = {}

    def step(self, made: ViewStep) -> Step:
        instruction, slot = made
        index = instruction.outs.index(slot)
        mode = not is_made_under_no_grad(self._tape.tensor_of(slot))
        if not isinstance(instruction.args[0], Ref) or any(isinstance(leaf, Ref) for leaf in leaves(instruction.args[1:])):
            raise UnsupportedError("view op with a tensor argument", str(instruction.op), instruction.where)

        @torch.set_grad_enabled(mode)
        def call(tensor: torch.Tensor, resolve: Resolve) -> list[torch.Tensor]:
            args = map_leaves(resolve, instruction.args[1:])
            result = instruction.op(tensor, *args, **map_leaves(resolve, instruction.kwargs))
            return list(result) if instruction.returns_list else [result]

        if slot in self._tape.outdated:
            return lambda tensor, resolve: outdate(call(tensor, resolve)[index])
        of_call = self._made.setdefault(id(instruction), _Made())
        number, of_call.num_steps = of_call.num_steps, of_call.num_steps + 1
        return lambda tensor, resolve: of_call.take(number, tensor, lambda: call(tensor, resolve))[index]


class _Made:
    """What one view call makes of a tensor, kept in this thread until all steps that begin with it have taken it."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._here = threading.local()

    def take(self, number: int, tensor: torch.Tensor, call: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        """``number``: of the step, which takes it once in each call of the region."""
        base, views, taken = getattr(self._here, "made", _NOTHING)
        if base is not tensor or number in taken:
            views, taken = call(), frozenset[int]()
        taken |= {number}
        self._here.made = _NOTHING if len(taken) == self.num_steps else (tensor, views, taken)
        return views


_NOTHING: tuple[torch.Tensor | None, list[torch.Tensor], frozenset[int]] = (None, [], frozenset())
