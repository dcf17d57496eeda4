"""Capture a live backward: run it once for real, node by node in the engine's order, and record what it calls.

    capture: native Walk -> (results, Captured, Report)

The native EngineRun drives, and tells an Observer. Nodes whose state the walk's key shows are recorded as ATen calls. Every
other node (one with hooks, a Python Function, one that looks at data) is a boundary: it runs live, then and on every later
run, and cuts the recording into pieces. See Note [Compiled autograd].
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from gradc import native
from gradc.backward.written_results import Versions, count_as_eager, versions_in_eager
from gradc.capture.live_recorder import LiveRecorder, WrappedNumber
from gradc.capture.recording import Boundary, Captured, EngineState, Expected, HookKind, Ran, Report, Slots, Span, Waiting
from gradc.torch_private.autograd import is_view, storage_key
from gradc.torch_private.modes import innermost_dispatch_mode, without_functions_of_subclasses
from gradc.walk.origins import RegionBackward, line_of, region_of

if TYPE_CHECKING:
    from gradc._C import Walk

Values = Sequence[torch.Tensor | None]
_ROOT = "torch::autograd::GraphRoot (NodeCall 0)"


def capture(walk: Walk) -> tuple[list[torch.Tensor | None], Captured, Report]:
    """Run the walked graph live, once, and return its results and what was recorded."""
    with without_functions_of_subclasses():
        observer = Observer(walk)
    try:
        known, results = native.extension.capture(walk, observer)
        with without_functions_of_subclasses():
            return results, observer.captured(known), observer.report(known)
    finally:
        observer.forget_tensors()


class Observer:
    """Notes what the native run tells of one backward pass. ``tensors`` stand in for the walked ones in a trace."""

    def __init__(self, walk: Walk, tensors: list[torch.Tensor] | None = None) -> None:
        tensors = walk.tensors if tensors is None else tensors
        self.walk = walk
        self._origin = _ROOT
        self._inside = contextlib.ExitStack()
        self.recorder = LiveRecorder(lambda: ("", self._origin))
        self._names = [walk.name(node) for node in range(walk.num_nodes)]
        self._inputs = tuple(
            self.recorder.add_walked(tensor, "grad_root" if position < walk.num_grads else "saved")
            for position, tensor in enumerate(tensors)
        )
        self._twins = self._twins_among(tensors)
        self._numbers = {
            node: WrappedNumber(tensors[position], tensors[position].item()) for node, position in walk.number_inputs
        }
        self._events: list[Ran | Boundary] = []
        self._dependent: set[int] = set()  # slots
        self._handles: dict[int, set[int]] = {}  # slot of what a live node returned several times -> all of its slots
        self._failure = ""
        self._regions: dict[int, RegionBackward] = {}
        self._first_call, self._first_slot = 0, 0  # of the present node
        self._counts: Versions = ()  # of its results
        self._versions: dict[int, int] = {}
        self._first_uncounted = 0
        self._entered: Slots = ()
        self._grad = -1
        self._boundary: Boundary | None = None  # the state after it is yet to come

    # ---- what the native run tells

    def begin(self) -> None:
        with contextlib.ExitStack() as contexts:
            for context in self._around():
                contexts.enter_context(context)
            self._inside = contexts.pop_all()

    def end(self) -> None:
        self.pause()
        self._inside.close()
        self._fail_if_tainted()

    def enter(self, node: int, inputs: Values) -> None:
        self._fail_if_tainted()  # an addition between two nodes
        self._first_call, self._first_slot = len(self.recorder.instructions), len(self.recorder.slots)
        self._entered = self._slots(inputs)
        self._origin = f"{self._names[node]} (NodeCall {node + 1})"
        self.recorder.number = self._numbers.get(node)
        self._grad = -1
        self._counts = versions_in_eager(self.walk.node(node))

    def accumulated(self, node: int, grad: torch.Tensor) -> None:
        self._grad = self.recorder.slot(grad)

    def leave(self, node: int, outputs: Values) -> bool:
        """Note a node that ran below the recorder. True: it must run live on every run, and its state follows."""
        self.recorder.number = None
        count_as_eager(outputs, self._counts)
        slots = self._slots(outputs)
        if not self.recorder.taint:
            calls = Span(self._first_call, len(self.recorder.instructions))
            self._events.append(Ran(node, self.walk.is_leaf(node), self._grad, calls, self._entered))
            return False
        if self.walk.is_leaf(node) or any(-1 < slot < self._first_slot for slot in slots):
            self._fail_if_tainted()
            return False
        self.recorder.taint = ""
        del self.recorder.instructions[self._first_call :]
        self._open_boundary(node, self._entered, outputs, slots)
        return True

    def pause(self) -> None:
        """Note the version counters of what was made since the last time: what runs live may write into it."""
        for call in self.recorder.instructions[self._first_uncounted :]:
            for slot in call.outs:
                if slot is not None and slot not in self._versions:
                    tensor = self.recorder.known.tensor_of(slot)
                    self._versions[slot] = 0 if tensor.is_inference() else tensor._version
        self._first_uncounted = len(self.recorder.instructions)

    def boundary(
        self,
        node: int,
        inputs: Values,
        outputs: Values,
        are_inputs_stealable: Sequence[bool],
        are_inputs_kept: Sequence[bool],
        are_outputs_stealable: Sequence[bool],
    ) -> None:
        """Note a node that ran live. Its state follows."""
        before = self._slots(inputs)
        self._fail_if_tainted()
        if self.walk.create_graph and any(value is not None and value.requires_grad for value in outputs):
            self._failure = self._failure or "hook that leaves a graph"
        after = tuple(-1 if value is None else self.recorder.add_returned(value, "live") for value in outputs)
        self._note_handles(outputs, after)
        self._open_boundary(node, before, outputs, after, are_inputs_stealable, are_inputs_kept, are_outputs_stealable)
        self._note_region(node, inputs)

    def depends_on_holders(self, value: torch.Tensor) -> None:
        """Note that what eager adds to this value leaves other strides, or versions, if somebody has it.

        A live node has returned or taken it.
        """
        slot = self.recorder.slot(value)
        self._dependent |= self._handles.get(slot, {slot})

    def snapshot(self, newly_done: list[int], not_ready: list[Any], ready: list[Any], results: Values) -> None:
        assert self._boundary is not None, "follows a boundary"
        waiting = (value for _, inputs in (*not_ready, *ready) for value in inputs)
        views = self._slots([value for value in waiting if value is not None and is_view(value)])
        after = EngineState(tuple(newly_done), self._waiting(not_ready), self._waiting(ready), self._slots(results), views)
        self._events.append(dataclasses.replace(self._boundary, after=after))
        self._boundary = None

    # ---- what was seen

    def captured(self, results: Values) -> Captured:
        """What was recorded, without the tensors. ``results``: what the run returned."""
        slots, recorder = self._slots(results), self.recorder
        self._fail_if_tainted()
        return Captured(
            inputs=self._inputs,
            twins=self._twins,
            slots=tuple(recorder.slots),
            constants=recorder.constants,
            instructions=tuple(recorder.instructions),
            events=tuple(map(self._with_dependent, self._events)),
            results=slots,
            has_offsets=recorder.has_offsets,
            versions=self._versions,
            failure=self._failure,
        )

    def report(self, results: Values) -> Report:
        """What is worth showing."""
        walk = self.walk
        leaves = [event.node for event in self._events if walk.is_leaf(event.node)]
        slots = {node: self.recorder.walked_slot(walk.variable(node)) for node in leaves}
        variables = {node: slot for node, slot in slots.items() if slot is not None}
        program = self.recorder.program([])
        lines = {node: line for node in range(walk.num_nodes) if (line := line_of(walk, node))}
        hooks = {node: tuple(map(HookKind, kinds)) for node, kinds in walk.hooks().items()}
        events, values = tuple(self._events), self._slots(results)
        return Report(program, self._names, events, variables, values, hooks, lines, self._regions)

    def forget_tensors(self) -> None:
        """Let go of the live graph and its tensors, which would else live until Python collects cycles."""
        del self.walk
        self._numbers = {}
        self.recorder.forget_tensors()

    # ---- helpers

    def _around(self) -> tuple[AbstractContextManager[Any], ...]:
        """What is in force around the run."""
        return (innermost_dispatch_mode(self.recorder),)

    def _twins_among(self, tensors: list[torch.Tensor]) -> dict[int, int]:
        """Slots of walked tensors that are another handle of an earlier one, to that one's slot."""
        pairs = zip(self._inputs, tensors, strict=True)
        same = {slot: self.recorder.walked_slot(tensor) for slot, tensor in pairs}
        return {slot: first for slot, first in same.items() if first is not None and slot != first}

    def _slots(self, values: Values) -> Slots:
        return tuple(self.recorder.slot(value) for value in values)

    def _waiting(self, nodes: list[tuple[int, Values]]) -> tuple[Waiting, ...]:
        return tuple(Waiting(node, self._slots(inputs)) for node, inputs in nodes)

    def _open_boundary(
        self,
        node: int,
        inputs: Slots,
        outputs: Values,
        slots: Slots,
        are_inputs_stealable: Sequence[bool] = (),
        are_inputs_kept: Sequence[bool] = (),
        are_outputs_stealable: Sequence[bool] = (),
    ) -> None:
        self.pause()
        for value, slot in zip(outputs, slots, strict=True):
            if value is not None:
                self.recorder.note_returned(value, slot)
        self._boundary = Boundary(
            node,
            len(self.recorder.instructions),
            inputs,
            slots,
            self._expected(node, outputs),
            tuple(are_inputs_stealable),
            tuple(are_inputs_kept),
            tuple(are_outputs_stealable),
            is_needed=self.walk.is_needed(node),
        )

    def _note_handles(self, outputs: Values, slots: Slots) -> None:
        """Note which outputs are one tensor, in the hands of hooks: they lie on one storage."""
        strided = (None if value is None or value.layout is not torch.strided else value for value in outputs)
        storages = [0 if value is None else storage_key(value) for value in strided]
        for storage in {storage for storage in storages if storages.count(storage) > 1} - {0}:
            handles = {slot for slot, other in zip(slots, storages, strict=True) if other == storage}
            self._handles.update(dict.fromkeys(handles, handles))

    def _with_dependent(self, event: Ran | Boundary) -> Ran | Boundary:
        if isinstance(event, Ran) or self._dependent.isdisjoint((*event.inputs, *event.outputs)):
            return event
        returned = tuple(position for position, slot in enumerate(event.outputs) if slot in self._dependent)
        waiting = self._dependent & {handle for slot in event.after.slots() for handle in self._handles.get(slot, (slot,))}
        kept = zip(event.inputs, event.is_kept, strict=False)  # of a node without hooks, who keeps its inputs is not noted
        taken = tuple(position for position, (slot, _) in enumerate(kept) if slot in waiting)
        return dataclasses.replace(event, dependent=returned, dependent_inputs=taken)

    def _expected(self, node: int, outputs: Values) -> tuple[Expected, ...]:
        """What results of a node must look like on a later run."""
        described = (native.extension.metadata_of(value) for value in outputs)
        return tuple(
            Expected(head, tuple(numbers), None if value is None else value.dtype)
            for (head, numbers), value in zip(described, outputs, strict=True)
        )

    def _note_region(self, node: int, gradients: Values) -> None:
        region = region_of(self.walk, node, gradients)
        if region is not None:
            self._regions[node] = region

    def _fail_if_tainted(self) -> None:
        self._failure = self._failure or self.recorder.taint
        self.recorder.taint = ""
