"""Capture a live backward: run it once for real, node by node in the engine's order, and record what it calls.

    capture: native Walk -> (results, Capture)          Capture.layout() -> Layout, which gradc._C.Recording is made from

The native LiveRun drives; a Capture is its observer. Nodes whose state the walk's key shows are recorded as ATen calls.
Every other node (one with hooks, a Python Function, one that looks at data) is a boundary: it runs live, then and on every
later run, and cuts the recording into pieces. See Note [Compiled autograd].
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.utils._python_dispatch import _pop_mode, _push_mode

from gradc import native
from gradc.ambient import autocast_set_to
from gradc.errors import UnsupportedError
from gradc.ir.known import handle_of
from gradc.ir.program import Program
from gradc.ir.recorder import Recorder, tensor_meta
from gradc.walk.origins import RegionBackward, line_of, region_of

Slots = list[int]  # -1: an undefined gradient
Waiting = list[tuple[int, Slots]]
Term = int | tuple[int, tuple[int, ...]]  # a number, or coefficient * the product of some symbols
Metadata = tuple[bytes, list[Any]]  # of a tensor: dtype and the like; sizes and strides

_DATA_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_EXPLICIT_OFFSET = ("aten::as_strided", "aten::set_")


@dataclasses.dataclass
class Ran:
    """A recorded node. ``grad`` is the slot of a leaf's new ``.grad``, or -1.

    ``calls`` are the instructions it made (first, last + 1), ``inputs`` the slots of what it was given.
    """

    node: int
    is_leaf: bool = False
    grad: int = -1
    calls: tuple[int, int] = (0, 0)
    inputs: Slots = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Boundary:
    """A node that runs live. ``position`` counts the instructions before it.

    ``metadata`` and ``dtypes`` say what its results must look like. ``is_owned`` says of each input whether in eager it is
    the only tensor on its memory and held once; from ``done`` on it is the engine's state after it.
    """

    node: int
    position: int
    inputs: Slots
    outputs: Slots
    metadata: list[Metadata]
    dtypes: list[torch.dtype | None]
    is_owned: list[bool] = dataclasses.field(default_factory=list)
    dying: Slots = dataclasses.field(default_factory=list)
    done: list[int] = dataclasses.field(default_factory=list)
    not_ready: Waiting = dataclasses.field(default_factory=list)
    ready: Waiting = dataclasses.field(default_factory=list)
    results: Slots = dataclasses.field(default_factory=list)

    @property
    def waiting(self) -> set[int]:
        """Slots that the rest of the run needs if it has to go on live from here."""
        slots = {slot for _, inputs in (*self.not_ready, *self.ready) for slot in inputs}
        return (slots | set(self.results)) - {-1}


class LiveRecorder(Recorder):
    """A Recorder of real tensors that says when a call cannot stand in a recording.

    ``taint`` is the reason: the call's result depends on data, or it reads a tensor that nobody knows how to find again.
    ``number`` is the number that the present node multiplies or divides by: the tensor that wraps it, and its value.
    """

    def __init__(self, place: Any) -> None:
        super().__init__("compiled_autograd", lift=self._find, place=place)
        self.taint = ""
        self.has_offsets = False
        self.number: tuple[torch.Tensor, Any] | None = None
        self._inputs: dict[tuple[Any, ...], int] = {}
        self._live: dict[tuple[Any, ...], int] = {}

    def add_walked(self, tensor: torch.Tensor, name: str) -> int:
        slot = self.add_input(tensor, name)
        self._inputs.setdefault(handle_of(tensor), slot)
        return slot

    def walked_slot(self, tensor: torch.Tensor) -> int | None:
        """The slot of the first walked tensor with this memory and layout."""
        return self._inputs.get(handle_of(tensor))

    def add_live(self, tensor: torch.Tensor, name: str) -> int:
        """A slot for what a boundary returned."""
        slot = self._new_slot(name, tensor_meta(tensor), "")
        self.known.add(slot, tensor)
        self._live[handle_of(tensor)] = slot
        return slot

    def slot(self, tensor: torch.Tensor | None) -> int:
        """The slot of a value; -1 for an undefined gradient."""
        if tensor is None:
            return -1
        known = self.slot_of(tensor)
        return self._find(tensor) if known is None else known

    def _note(self, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        if self.number is not None:
            args = tuple(self._number_as_tensor(value, parameter) for value, parameter in zip(args, op._schema.arguments))
        super()._note(op, args, kwargs, result)

    def _number_as_tensor(self, value: Any, parameter: Any) -> Any:
        """The tensor that a number was before the mode unwrapped it: a number stands where the schema wants a tensor."""
        if not isinstance(value, (bool, int, float)) or not isinstance(parameter.real_type, torch.TensorType):
            return value
        assert self.number is not None
        tensor, number = self.number
        if value != number:
            self.taint = self.taint or "number of unknown origin"
        return tensor

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(op, types, args, kwargs)
        if _DATA_TAGS & set(op.tags):
            self.taint = self.taint or f"result that depends on data ({op})"
        if op._schema.name in _EXPLICIT_OFFSET:
            self.has_offsets = True
        return result

    def _call(self, op: Any, args: Any, kwargs: Any) -> Any:
        seen = self._seen_by(op)
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
        extension = native.extension()
        assert extension is not None
        slot = self._find_alias(tensor)
        if slot is None and extension.is_wrapped_number(tensor):  # made from a constant of the node, which is in the key
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
        known, live = self._inputs.get(handle), self._live.get(handle)
        if known is None:
            known = self.slot_of_alias(tensor)
        if known is not None and live is not None and known != live:
            return None  # one memory now, but a hook may return another tensor next time
        return live if known is None else known


@dataclasses.dataclass(frozen=True)
class Report:
    """A capture for people: all calls as one Program, whose inputs are the walked tensors, and where they come from.

    ``variables`` holds the slot of each leaf that was walked, ``hooks`` the kinds of hooks of each node that has any,
    ``lines`` the user's line of each node, where it is known, ``regions`` what nodes of gradc's ran.
    """

    program: Program
    names: list[str]
    events: list[Ran | Boundary]
    variables: dict[int, int]
    results: Slots
    hooks: dict[int, list[str]]
    lines: dict[int, str]
    regions: dict[int, RegionBackward]


class Capture:
    """The observer of one capture. ``failure`` is why the whole graph cannot be replayed, or ""."""

    def __init__(self, walk: Any, tensors: list[torch.Tensor] | None = None) -> None:
        tensors = walk.tensors if tensors is None else tensors
        self.walk = walk
        self.recorder = LiveRecorder(self._place)
        self.names = [walk.name(node) for node in range(walk.num_nodes)]
        self.inputs = [
            self.recorder.add_walked(tensor, "grad_root" if position < walk.num_grads else "saved")
            for position, tensor in enumerate(tensors)
        ]
        self.twins = self._twins(tensors)
        self.numbers = {node: (tensors[position], tensors[position].item()) for node, position in walk.number_inputs}
        self.events: list[Ran | Boundary] = []
        self.results: Slots = []
        self.failure = ""
        self.regions: dict[int, RegionBackward] = {}
        self._node = -1
        self._start, self._first_slot = 0, 0
        self._entered: Slots = []
        self._grad = -1
        self._origin = "torch::autograd::GraphRoot (NodeCall 0)"

    @property
    def boundaries(self) -> list[Boundary]:
        return [event for event in self.events if isinstance(event, Boundary)]

    # ---- what the native run tells

    def begin(self) -> None:
        _push_mode(self.recorder)

    def end(self) -> None:
        _pop_mode()
        self._fail_if_tainted()

    def enter(self, node: int, inputs: list[torch.Tensor | None]) -> None:
        self._fail_if_tainted()  # an addition between two nodes
        self._node, self._start, self._first_slot = node, len(self.recorder.instructions), len(self.recorder.slots)
        self._entered = [self.recorder.slot(value) for value in inputs]
        self._origin = f"{self.names[node]} (NodeCall {node + 1})"
        self.recorder.number = self.numbers.get(node)
        self._grad = -1

    def leave(self, node: int, outputs: list[torch.Tensor | None]) -> bool:
        self.recorder.number = None
        slots = [self.recorder.slot(value) for value in outputs]
        if not self.recorder.taint:
            self.events.append(self._ran(node, self._grad))
            return False
        if self.walk.is_leaf(node) or any(-1 < slot < self._first_slot for slot in slots):
            self._fail_if_tainted()
            return False
        self.recorder.taint = ""
        del self.recorder.instructions[self._start :]
        self._add_boundary(node, self._entered, outputs, slots, [])
        return True

    def accumulated(self, node: int, grad: torch.Tensor) -> None:
        self._grad = self.recorder.slot(grad)

    def boundary(
        self, node: int, inputs: list[torch.Tensor | None], outputs: list[torch.Tensor | None], is_owned: list[bool]
    ) -> None:
        before = [self.recorder.slot(value) for value in inputs]
        self._fail_if_tainted()
        after = [-1 if value is None else self.recorder.add_live(value, "live") for value in outputs]
        self._add_boundary(node, before, outputs, after, is_owned)
        self._note_region(node, inputs)

    def snapshot(self, done: list[int], not_ready: list[Any], ready: list[Any], results: list[Any]) -> None:
        boundary = self.events[-1]
        assert isinstance(boundary, Boundary)
        boundary.done = done
        boundary.not_ready = [(node, self._slots(inputs)) for node, inputs in not_ready]
        boundary.ready = [(node, self._slots(inputs)) for node, inputs in ready]
        boundary.results = self._slots(results)

    def report(self) -> Report:
        """What is worth showing, without the tensors."""
        leaves = [event.node for event in self.events if self.walk.is_leaf(event.node)]
        slots = {node: self.recorder.walked_slot(self.walk.variable(node)) for node in leaves}
        variables = {node: slot for node, slot in slots.items() if slot is not None}
        program = self.recorder.program([])
        lines = {node: line for node in range(self.walk.num_nodes) if (line := line_of(self.walk, node))}
        return Report(program, self.names, self.events, variables, self.results, self.walk.hooks(), lines, self.regions)

    def forget_tensors(self) -> None:
        """Let go of the live graph and its tensors, which would else live until Python collects cycles."""
        self.walk = None
        self.numbers = {}
        self.recorder.forget_tensors()

    # ---- helpers

    def _twins(self, tensors: list[torch.Tensor]) -> dict[int, int]:
        """Slots of walked tensors that are another handle of an earlier one, to that one's slot."""
        pairs = zip(self.inputs, tensors, strict=True)
        same = {slot: self.recorder.walked_slot(tensor) for slot, tensor in pairs}
        return {slot: first for slot, first in same.items() if first is not None and slot != first}

    def _ran(self, node: int, grad: int) -> Ran:
        calls = self._start, len(self.recorder.instructions)
        return Ran(node, self.walk.is_leaf(node), grad, calls, self._entered)

    def _slots(self, values: list[torch.Tensor | None]) -> Slots:
        return [self.recorder.slot(value) for value in values]

    def _add_boundary(self, node: int, inputs: Slots, outputs: list[Any], slots: Slots, is_owned: list[bool]) -> None:
        for value, slot in zip(outputs, slots, strict=True):
            if value is not None:
                self.recorder._live[handle_of(value)] = slot
        metadata = self._metadata(node, outputs)
        dtypes = [None if value is None else value.dtype for value in outputs]
        self.events.append(Boundary(node, len(self.recorder.instructions), inputs, slots, metadata, dtypes, is_owned))

    def _note_region(self, node: int, gradients: list[torch.Tensor | None]) -> None:
        region = region_of(self.walk, node, gradients)
        if region is not None:
            self.regions[node] = region

    def _metadata(self, node: int, outputs: list[Any]) -> list[Metadata]:
        extension = native.extension()
        assert extension is not None
        return [extension.metadata_of(value) for value in outputs]

    def _fail_if_tainted(self) -> None:
        self.failure = self.failure or self.recorder.taint
        self.recorder.taint = ""

    def _place(self) -> tuple[str, str]:
        return "", self._origin


def capture(walk: Any) -> tuple[list[torch.Tensor | None], Capture]:
    """Run the walked graph live, once, and return its results and what was recorded."""
    extension = native.extension()
    assert extension is not None
    observer = Capture(walk)
    known, results = extension.capture(walk, observer)
    observer.results = observer._slots(known)
    observer._fail_if_tainted()
    return results, observer


__all__ = ["Boundary", "Capture", "Ran", "UnsupportedError", "capture"]
