"""A compiled region: a forward Program, and the segments that stand for its backward in the live autograd graph.

    build_region: (Tape, Settings, name) -> Region
    Region:       (*inputs) -> list of outputs

Calling a region runs the forward Program below autograd and then builds one live autograd node for each segment.

                forward:  inputs ---Program---> outputs, saved tensors
                                                   |
    live graph: outputs.grad_fn = segment n --edges--> ... --edges--> segment 0 --edges--> grad_fn of the inputs

What a node does when the engine runs it is ``backward.cache.BackwardCache``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc import native
from gradc.analysis.devices import is_elsewhere, refuse_several_devices
from gradc.analysis.facts import analyse
from gradc.analysis.hoist import Hoisted, hoist
from gradc.analysis.order import LiveNode, live_order
from gradc.analysis.outputs import AliasUsedInside, Outputs, analyse_outputs, refuse_views_used_inside
from gradc.analysis.segments import Segment, cut, refuse_later_views
from gradc.backward.cache import BackwardCache
from gradc.backward.key import BackwardKey, native_key
from gradc.backward.settings import Settings
from gradc.executor import is_plan
from gradc.ir.program import Program
from gradc.ir.sizes import Sizes
from gradc.ir.text import print_program
from gradc.ir.values import Ref, Sym
from gradc.journal import log
from gradc.nodes.live_call import Call
from gradc.nodes.packing import Packing
from gradc.nodes.thread_counts import note_device
from gradc.passes import pipeline
from gradc.region.expansion import Expansion, expansion
from gradc.region.joined import joined_program
from gradc.region.native_layout import direct_outputs, is_made_natively, region_spec
from gradc.region.packing import packed_numbers, packing_program, why_never_packed, why_not_dropped
from gradc.region.pure_hooks import is_pure
from gradc.region.returned import Returned, choose_returned
from gradc.region.summary import graph_of
from gradc.tape.tape import Edge, Tape
from gradc.tape.weight_casts import CacheError
from gradc.torch_private.autograd import (
    are_saved_tensors_hooked,
    has_gradient_hooks,
    input_metadata,
    next_sequence_nr,
    user_hooks_on_saving,
)
from gradc.torch_private.modes import autocast_nesting


def build_region(
    tape: Tape, settings: Settings, name: str, *, is_split_at_leaves: bool = False, is_split_at_nodes: bool = False
) -> Region:
    """The way from a tape to a region. No step writes into what an earlier one made.

    Raises:
        UnsupportedError: for what cannot be compiled.
    """
    facts = analyse(tape)
    hoisted = hoist(tape, facts)
    outputs = analyse_outputs(hoisted, facts)
    return cut_and_lower(hoisted, outputs, settings, name, is_split_at_leaves, is_split_at_nodes)


def cut_and_lower(
    hoisted: Hoisted, outputs: Outputs, settings: Settings, name: str, is_split_at_leaves: bool, is_split_at_nodes: bool = False
) -> Region:
    """The rest of that way, which can be gone again with other cuts.

    ``is_split_at_leaves``: cut wherever a gradient leaves, so that hooks on leaves run between the cuts, as in eager.
    ``is_split_at_nodes``: a segment for each node, whose backward is eager's own.
    """
    cuts = {"is_split_at_leaves": is_split_at_leaves, "is_split_at_nodes": is_split_at_nodes}
    segments = cut(hoisted, outputs.edges, outputs.made_between, **cuts)
    refuse_views_used_inside(hoisted.tape, outputs, segments)
    refuse_several_devices(segments)
    order = live_order(hoisted, segments, outputs, is_numbered=any(map(is_elsewhere, segments)))
    returned = choose_returned(hoisted, outputs, segments)
    forward = forward_program(hoisted, returned, segments)
    run = settings.lower(forward)
    build = functools.partial(_same_settings, settings)
    join = functools.partial(joined_program, forward, returned)
    split = functools.partial(cut_and_lower, hoisted, outputs, settings, f"{name}, node by node", False, is_split_at_nodes=True)
    expand = _Expand(segments, split)
    backwards = BackwardCache(hoisted.tape, segments, settings, name, build, join, expand, **cuts)
    spec = region_spec(run, hoisted, segments, returned, order, backwards, is_split_at_leaves) if is_plan(run) else None
    if spec is None:
        refuse_later_views(hoisted.tape, segments)
    for device in {entry.device for segment in segments if is_elsewhere(segment) for entry in map(_meta, segment.entries)}:
        note_device(device)
    region = Region(
        name, settings, hoisted, outputs, segments, order, returned, forward, run, backwards, is_split_at_leaves,
        None if spec is None else native.extension.Region(spec), () if spec is None else tuple(spec.shapes),
    )  # fmt: skip
    log("graphs", lambda: f"forward of {name}\n{print_program(forward)}", lambda: graph_of(name, hoisted, segments, forward))
    return region


def forward_program(hoisted: Hoisted, returned: Returned, segments: Sequence[Segment]) -> Program:
    """The tape's calls as the Program of a region's forward."""
    outputs = tuple(Ref(_known(hoisted.tape.slot_of(fake))) for fake in returned.fakes)
    users = [out.slot for out in outputs[: returned.num_outputs]]
    users += (hoisted.tape.saved[index].slot for segment in segments for index in segment.saved_by_python)
    passes = pipeline.forward(users, is_derivative=hoisted.tape.is_derivative)
    return pipeline.run(passes, dataclasses.replace(hoisted.program, outputs=outputs))


def _same_settings(settings: Settings, tape: Tape, name: str, **cuts: bool) -> Region:
    """How a backward builds regions: a derivative is one, and so is the same function with plain numbers for sizes."""
    return build_region(tape, settings, name, **cuts)


class _Expand:
    """What a segment is expanded into, by its number. The region is cut node by node when the first is."""

    def __init__(self, segments: Sequence[Segment], split: Callable[[], Region]) -> None:
        self._segments, self._split = segments, split

    @functools.cached_property
    def _fine(self) -> Region:
        return self._split()

    def __call__(self, number: int, sizes: Sizes) -> Expansion | None:
        self._fine.backwards.prepare(sizes)
        return expansion(self._segments[number], self._fine, sizes)


@dataclasses.dataclass(frozen=True, eq=False)
class Region:
    """See the module's docstring. Nothing about it changes but what its ``backwards`` compile; safe under several threads.

    Attributes:
        live_order: what a call makes, in eager's order; () if it makes them so.
        forward: the forward Program, which ``run`` runs.
        is_split_at_leaves: whether it is cut wherever a gradient leaves it.
        native: what runs the forward and builds the nodes in one call; None if ``run`` is no plan.
        shapes: the sizes that each call must tell ``native``.
    """

    name: str
    settings: Settings
    hoisted: Hoisted
    outputs: Outputs
    segments: tuple[Segment, ...]
    live_order: tuple[LiveNode, ...]
    returned: Returned
    forward: Program
    run: Callable[[list[Any]], list[Any]]
    backwards: BackwardCache
    is_split_at_leaves: bool
    native: native.extension.Region | None
    shapes: tuple[Sym, ...]

    @property
    def tape(self) -> Tape:
        return self.hoisted.tape

    @functools.cached_property
    def split_at_leaves(self) -> Region:
        """The same region cut wherever a gradient leaves it, so that hooks on leaves run between the cuts, as in eager."""
        return cut_and_lower(self.hoisted, self.outputs, self.settings, f"{self.name}, split at leaves", True)

    @functools.cached_property
    def packing(self) -> Any:
        """What ``native`` is, for a call inside of saved-tensors hooks: its forward packs. None where there is none."""
        if self.native is None:
            return None
        returned = choose_returned(self.hoisted, self.outputs, self.segments, returns_transposed=True)
        program = packing_program(self.hoisted, returned, self.segments, len(self.outputs.values))
        run = self.settings.lower(program)
        parts = self.hoisted, self.segments, returned, self.live_order, self.backwards, self.is_split_at_leaves
        return native.extension.Region(region_spec(run, *parts)) if is_plan(run) else None

    @functools.cached_property
    def _why_never_packed(self) -> str:
        return why_never_packed(self.tape)

    @functools.cached_property
    def _why_not_dropped(self) -> str:
        return why_not_dropped(self.tape, self.segments)

    def why_not_packed(self) -> str:
        """Why eager has to run a call inside of the saved-tensors hooks that are in force; "" also where there are none."""
        hooks = user_hooks_on_saving()
        if hooks is None:
            return self._why_not_dropped if are_saved_tensors_hooked() else ""
        return self._why_never_packed or ("" if all(map(is_pure, hooks)) and self.packing else "saved-tensors hooks")

    def guarded(
        self,
        slow: Callable[..., Any],
        raised: Callable[[BaseException, torch.Tensor | None], Any] | None = None,
        draws: bool = False,
        joint: Any = None,
        loss: int = 0,
    ) -> Callable[..., Any]:
        """What to call: the native region itself, if it can do the whole call; it asks ``slow`` when in doubt.

        ``raised``: what the native region calls with each error; it raises another in its place, gives what stands in place of
        the outputs, or gives None. It is given the state of the CPU's generator before the call, too, if the region ``draws``.
        ``joint``: what the backward goes by of the output with the number ``loss``, where that goes straight there; else None.
        """
        if self.native is None or not self._is_direct:
            return slow
        inner = self.tape.inner_gradients
        leaves = {position for gradient in inner for position in gradient.must_be_leaves}
        unheard = {position for gradient in inner for position in gradient.wanted}
        numbers = list(self.shapes)
        outputs = direct_outputs(self.outputs.kinds, numbers)
        of_symbols = () if not self.tape.symints else self._of_symbols(numbers)
        return self.native.direct(
            outputs, slow, raised, draws, not self._why_not_dropped, sorted(leaves), sorted(unheard), joint, loss, *of_symbols
        )

    def _of_symbols(self, numbers: list[Sym]) -> tuple[Callable[..., list[int]], Callable[..., Sizes], int]:
        """What a direct call asks with the values of the symbols: the numbers, of which the shapes come first; the sizes."""

        def sizes(*values: int) -> Sizes:
            return self.backwards.sizes_of(values)

        return lambda *values: list(map(sizes(*values), numbers)), sizes, len(self.shapes)

    def native_keys(self, number: int) -> list[BackwardKey]:
        """What the native node of a segment has backwards for, in no order."""
        return [] if self.native is None else [native_key(fields) for fields in self.native.keys(number)]

    @property
    def _is_direct(self) -> bool:
        is_simple = not any(isinstance(kind, AliasUsedInside) for kind in self.outputs.kinds)
        return is_simple and all(map(is_made_natively, self.hoisted.primals))

    @functools.cached_property
    def _makers(self) -> list[Callable[..., Any]]:
        return [primal.make for primal in self.hoisted.primals if primal.make is not None]

    def _must_split(self, inputs: tuple[Any, ...]) -> bool:
        if self.is_split_at_leaves or not self.segments:
            return False
        return has_gradient_hooks(inputs) if self.native is None else native.extension.has_gradient_hooks(inputs)

    def __call__(self, *inputs: Any) -> list[Any]:
        if self._must_split(inputs):
            return self.split_at_leaves(*inputs)
        if self.hoisted.is_nested not in (None, autocast_nesting() > 0):
            raise CacheError("autocast context around the call", "one where there was none when it was traced, or the reverse")
        call, start = Call(self, list(inputs)), next_sequence_nr()
        for make in self._makers:
            call.primals.append(make(call.primals, call.sizes))
        # Before the forward: a view that it writes into has another node when it is next asked for.
        nodes = call.nodes_of_primals(self.live_order)
        if self.native is None:
            segments = call.run(self.run)
        else:
            call.values, segments = self._run_natively(call, start)
        outputs = [call.output(kind) for kind in self.outputs.kinds]
        if self.live_order:
            call.put_in_order(self.live_order, nodes, segments, outputs, start, is_numbered=self._is_numbered)
        if self._is_numbered:
            native.extension.count_nodes_to(start + self.tape.num_nodes)
        return outputs

    @functools.cached_property
    def _is_numbered(self) -> bool:
        """Whether the live nodes get the numbers of eager's: see nodes/csrc/expand.h."""
        return self.native is not None and any(map(is_elsewhere, self.segments))

    @property
    def was_expanded(self) -> bool:
        """Whether a call's segments were: from then on eager makes the calls."""
        ways = self.native, self.__dict__.get("packing")  # those that there are
        is_split = "split_at_leaves" in self.__dict__ and self.split_at_leaves.was_expanded
        return is_split or any(way is not None and way.was_expanded for way in ways)

    def _run_natively(self, call: Call, start: int) -> tuple[list[Any], Any]:
        shapes = [call.sizes(shape) for shape in self.shapes]
        assert self.native is not None
        hooks = user_hooks_on_saving()
        if hooks is None or self.why_not_packed():
            return self.native(call.primals, shapes, start)
        with Packing(*hooks, packed_numbers(self.segments)).forward():
            return self.packing(call.primals, shapes, start)


def _meta(edge: Edge) -> Any:
    return input_metadata(*edge)


def _known(slot: int | None) -> int:
    assert slot is not None, "what is returned was recorded"
    return slot
