"""A compiled region: a forward Program, and the segments that stand for its backward in the live autograd graph.

    Region: (*inputs) -> list of outputs

Calling a region runs the forward Program below autograd and then builds one live autograd node for each segment
(``SegmentFunction``). A node's backward is compiled at its first call, for the state it runs in, and kept by key.

                forward:  inputs ---Program---> outputs, saved tensors
                                                   |
    live graph: outputs.grad_fn = segment n --edges--> ... --edges--> segment 0 --edges--> grad_fn of the inputs

Under ``create_graph`` a segment's backward is a region of its own, over the tangents and the saved tensors, whose nodes
lead into the live nodes of the segments that made the saved values. See Note [Higher order].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc.aot.backward import Backward, BackwardKey, run_nodes, saved_name, trace_backward
from gradc.aot.casts import cached_cast
from gradc.aot.effects import Derived, Output, Plain, Returned, Value, analyse_outputs
from gradc.aot.segments import Segment, cut
from gradc.aot.tape import Edge, Tape, record
from gradc.errors import UnsupportedError
from gradc.ir.passes import drop_dead, refuse_phantoms
from gradc.ir.program import AutocastState, Program, Sym, TensorMeta
from gradc.ir.recorder import tensor_meta
from gradc.ir.text import symbolic
from gradc.report.record import count, fallback, log
from gradc.state import ambient, autocast_state, set_autocast
from gradc.torch_private import is_graph_kept, is_view, will_engine_execute

Lower = Callable[[Program], Callable[[list[Any]], list[Any]]]

_BACKWARD_TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the user chose for a region when it was compiled.

    ``backward_autocast`` is the autocast that backward runs under, or None for whatever is ambient then.
    """

    lower: Lower
    backward_autocast: AutocastState | None = None


class Region:
    """See the module's docstring. Immutable but for the cache of compiled backwards; safe under several threads."""

    def __init__(self, tape: Tape, settings: Settings, name: str) -> None:
        self.tape, self.settings, self.name = tape, settings, name
        self.outputs, values = analyse_outputs(tape)
        observables = [tape_edge for _, tape_edge in values if tape_edge is not None]
        self.segments = cut(tape, observables)
        self.casts = [(p.cast_of, p.fake.dtype) for p in tape.primals if p.cast_of is not None and p.fake is not None]
        self._plan_returns(values)
        self.forward = refuse_phantoms(drop_dead(tape.recorder.program(self._returned), is_backward=tape.is_derivative))
        self._run = settings.lower(self.forward)
        self._primal_of_slot = {slot: position for position, slot in enumerate(self.forward.inputs)}
        self._symbols = list(tape.recorder.symbols.values())
        self._backwards: list[dict[BackwardKey, _CompiledBackward]] = [{} for _ in self.segments]
        self._derivatives: dict[Any, Region] = {}
        log("graphs", lambda: f"forward of {name}\n{self.forward}")

    def _plan_returns(self, values: list[tuple[torch.Tensor, Edge | None]]) -> None:
        """Decide what the forward Program returns: the outputs' values, then each saved tensor that is no input."""
        tape = self.tape
        self._returned: list[torch.Tensor] = [fake for fake, _ in values]
        position_of = {id(fake): position for position, fake in enumerate(self._returned)}
        slot_position: dict[int, int] = {}
        for fake, position in ((fake, position_of[id(fake)]) for fake in self._returned):
            slot = tape.recorder.slot_of(fake)
            if slot is not None:
                slot_position.setdefault(slot, position)
        inputs = {slot: position for position, slot in enumerate(tape.recorder.inputs)}
        self._value_of_edge: dict[Edge, int] = {
            edge: position_of[id(fake)] for fake, edge in values if edge is not None
        }
        self._saved_from: dict[int, tuple[str, int]] = {}
        for segment in self.segments:
            for index in segment.saved:
                saved = tape.saved[index]
                if saved.slot in inputs:
                    self._saved_from[index] = ("primal", inputs[saved.slot])
                    continue
                if saved.slot not in slot_position:
                    slot_position[saved.slot] = len(self._returned)
                    self._returned.append(saved.fake)
                self._saved_from[index] = ("value", slot_position[saved.slot])
                if saved.edge is not None:
                    self._value_of_edge.setdefault(saved.edge, slot_position[saved.slot])

    # ---- forward

    def __call__(self, *inputs: Any) -> list[Any]:
        primals = [*inputs, *(cached_cast(inputs[position], dtype) for position, dtype in self.casts)]
        values = self._run(list(primals))
        call = _Call(self, primals, values)
        if self.segments and torch.is_grad_enabled():
            for segment in self.segments:
                call.attach(segment)
        return [self._output(output, call) for output in self.outputs]

    def _output(self, output: Output, call: _Call) -> Any:
        match output:
            case Plain(value):
                return value if not isinstance(value, Sym) else call.symbolic(value)
            case Returned(position):
                return call.primals[position]
            case Value(position):
                return call.observed(position)
            case Derived(base, steps, requires_grad):
                tensor = self._output(base, call)
                with torch.set_grad_enabled(requires_grad and torch.is_grad_enabled()):
                    for step in steps:
                        tensor = step(tensor, call.symbolic)
                return tensor

    # ---- backward

    def backward(self, segment: Segment, call: _Call, saved: Sequence[torch.Tensor], tangents: Any, needed: Any) -> Any:
        """The gradients along the segment's exits. ``saved`` are the unpacked tensors of ``segment.saved``."""
        setting = self.settings.backward_autocast
        before = autocast_state()
        state = before if setting is None else setting
        set_autocast(state)
        try:
            if torch.is_grad_enabled():
                return self._differentiable_backward(segment, call, saved, tangents, needed, state)
            return self._compiled_backward(segment, call, saved, tangents, needed, state)
        finally:
            set_autocast(before)

    def _compiled_backward(
        self, segment: Segment, call: _Call, saved: Any, tangents: Any, needed: Any, state: AutocastState
    ) -> Any:
        metas = self._tangent_metas(segment, tangents, call)
        if any(slot is not None for slot in segment.entries[len(metas) :]):
            metas += (None,) * (len(segment.entries) - len(metas))
        key = BackwardKey(ambient(state), metas, tuple(needed))
        compiled = self._backwards[segment.number].get(key)
        if compiled is None:
            compiled = self._compile_backward(segment, key)
        if compiled.backward is None or not self._is_as_traced(compiled.backward, segment, saved, call):
            return self.run_live(segment, saved, tangents, needed)
        values = [tangent for tangent in tangents if tangent is not None]
        values += [saved[position] for position in compiled.backward.saved]
        values += call.symbol_values
        return compiled.run(values)

    def _compile_backward(self, segment: Segment, key: BackwardKey) -> _CompiledBackward:
        cache = self._backwards[segment.number]
        with self.tape.lock:
            if key in cache:
                return cache[key]
            name = f"backward_{segment.number}"
            try:
                backward = trace_backward(self.tape, segment, key, name)
            except UnsupportedError as error:
                fallback(error.kind, error.detail, error.where)
                compiled = _CompiledBackward(None, _not_compiled)
            else:
                log("graphs", lambda: f"backward of segment {segment.number} of {self.name}\n{backward.program}")
                if cache:
                    log("recompiles", lambda: f"{self.name}, {name}: {_difference(cache, key)}")
                compiled = _CompiledBackward(backward, self.settings.lower(backward.program))
            count("aot", "backward_compiles")
            cache[key] = compiled
            return compiled

    def compile_nominal(self) -> None:
        """Compile each segment's backward for the usual case: every gradient defined, contiguous, no autocast.

        Done while Dynamo still records guards on sizes, so that what cannot be differentiated shows up at once.

        Raises:
            UnsupportedError: the region is then for eager to run.
        """
        state = self.settings.backward_autocast or AutocastState()
        for segment in self.segments:
            metas: list[TensorMeta | None] = [None] * len(segment.entries)
            for position, (node, number) in enumerate(segment.entries[: segment.num_tangents]):
                with self.tape.fake_mode:
                    expected = node._input_metadata[number]
                    value = self._value_of_edge.get((node, number))
                    if value is not None:
                        fake = torch.empty_like(self._returned[value])
                    else:
                        fake = torch.empty(expected.shape, dtype=expected.dtype, device=expected.device)
                    metas[position] = dataclasses.replace(_meta(fake), offset=0)
            key = BackwardKey(ambient(state), tuple(metas), (True,) * len(segment.exits))
            backward = trace_backward(self.tape, segment, key, f"backward_{segment.number}")
            self._backwards[segment.number][key] = _CompiledBackward(backward, self.settings.lower(backward.program))
            log("graphs", lambda: f"backward of segment {segment.number} of {self.name}\n{backward.program}")

    def run_live(
        self, segment: Segment, saved: Sequence[torch.Tensor], tangents: Any, needed: Any, create_graph: bool = False
    ) -> Any:
        """Run the segment's tape nodes on the real tensors: eager itself, for states that no Program was made for."""
        by_index = dict(zip(segment.saved, saved, strict=True))
        count("aot", "segments_run_live")
        with self.tape.lock, self.tape.unpacking(lambda index: by_index.get(index, self.tape.saved[index].fake)):
            return run_nodes(self.tape, segment, tangents, needed, create_graph)

    def _differentiable_backward(
        self, segment: Segment, call: _Call, saved: Any, tangents: Any, needed: Any, state: AutocastState
    ) -> Any:
        """The backward as a region of its own: its inputs are the defined tangents, then the saved tensors."""
        defined = tuple(tangent is not None for tangent in tangents)
        inputs = [tangent for tangent in tangents if tangent is not None] + list(saved)
        layout = tuple((_meta(value), value.requires_grad) for value in inputs)
        key = (segment.number, ambient(state), defined, tuple(needed), layout)
        region = self._derivatives.get(key)
        if region is None:
            region = self._derivatives[key] = self._derivative(segment, defined, tuple(needed), inputs)
        return region(*inputs)

    def _derivative(self, segment: Segment, defined: tuple[bool, ...], needed: tuple[bool, ...], inputs: Any) -> Region:
        lower_tape = self.tape
        num_tangents = sum(defined)
        names = ["tangent"] * num_tangents + [saved_name(lower_tape, index) for index in segment.saved]

        def backward(tape: Tape, *fakes: torch.Tensor) -> list[Any]:
            given = iter(fakes[:num_tangents])
            by_index = dict(zip(segment.saved, fakes[num_tangents:], strict=True))
            tangents = [next(given) if is_defined else None for is_defined in defined]
            with lower_tape.unpacking(lambda index: by_index.get(index, lower_tape.saved[index].fake)):
                return run_nodes(lower_tape, segment, tangents, needed, create_graph=True)

        with lower_tape.lock:
            edges = [None] * num_tangents + [lower_tape.saved[index].edge for index in segment.saved]
            tape = record(backward, inputs, names, lower_tape.fake_mode, f"{self.forward.name}_d", edges=edges)
            return Region(tape, self.settings, f"derivative of {self.name}")

    # ---- small things

    def _tangent_metas(self, segment: Segment, tangents: Any, call: _Call) -> tuple[TensorMeta | None, ...]:
        return tuple(None if tangent is None else _meta(tangent) for tangent in tangents)

    def _is_as_traced(self, backward: Backward, segment: Segment, saved: Any, call: _Call) -> bool:
        """False if a saved-tensors hook gave back a tensor of another layout than was packed."""
        return True


@dataclasses.dataclass(frozen=True)
class _CompiledBackward:
    backward: Backward | None
    run: Callable[[list[Any]], list[Any]]


def _not_compiled(values: list[Any]) -> list[Any]:
    raise AssertionError("a backward without a Program is run by its nodes")


class _Call:
    """One call of a region: the tensors that its live nodes are built from. Dropped when the forward returns."""

    def __init__(self, region: Region, primals: list[Any], values: list[Any]) -> None:
        self.region, self.primals = region, primals
        self.values = [value.detach() if isinstance(value, torch.Tensor) and is_view(value) else value for value in values]
        self.entries: dict[tuple[int, int], torch.Tensor] = {}
        self.live: dict[int, torch.Tensor] = {}
        self.symbol_values = [self._symbol(*source) for source in region._symbols]

    def _symbol(self, kind: str, position: int, dimension: int) -> int:
        source = self.primals[position]
        return source if kind == "int" else getattr(source, kind)(dimension)

    def symbolic(self, value: Any) -> Any:
        """The value of a size in this call."""
        if not isinstance(value, Sym):
            return value
        names = {str(symbol): number for symbol, number in zip(self.region.tape.recorder.symbols, self.symbol_values)}
        return value.kind(eval(symbolic(value.expr), names))

    def attach(self, segment: Segment) -> None:
        """Build the live node of one segment."""
        edges = [
            self.primals[exit_.primal] if exit_.primal is not None else self.entries[exit_.entry]  # type: ignore[index]
            for exit_ in segment.exits
        ]
        outputs = SegmentFunction.apply(self, segment, *edges)
        for number, (edge, output) in enumerate(zip(segment.entries, outputs, strict=True)):
            self.entries[segment.number, number] = output
            position = self.region._value_of_edge.get(edge)
            if position is not None:
                self.live[position] = output

    def entry_value(self, segment: Segment, number: int) -> torch.Tensor:
        """What stands for one entry of a live node: the value itself, or a tensor that only has its metadata."""
        node, position = segment.entries[number]
        value = self.region._value_of_edge.get((node, position))
        if value is not None:
            return self.values[value]
        meta = node._input_metadata[position]
        size = [self.symbolic(_plain(dim)) for dim in meta.shape]
        return torch.empty_strided(size, [0] * len(size), dtype=meta.dtype, device=meta.device)

    def saved_value(self, index: int) -> torch.Tensor:
        kind, position = self.region._saved_from[index]
        if kind == "primal":
            return self.primals[position]
        edge = self.region.tape.saved[index].edge
        return self.live.get(position, self.values[position]) if edge is not None else self.values[position]

    def observed(self, position: int) -> torch.Tensor:
        return self.live.get(position, self.values[position])


class SegmentFunction(torch.autograd.Function):
    """The live autograd node of a segment, for machines without the native extension.

    ``apply(call, segment, *edges) -> outputs``: one output for each entry, one edge for each exit.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, segment: Segment, *edges: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        outputs = tuple(call.entry_value(segment, number) for number in range(len(segment.entries)))
        ctx.save_for_backward(*(call.saved_value(index) for index in segment.saved))
        ctx.region, ctx.segment, ctx.symbol_values, ctx.is_spent = call.region, segment, call.symbol_values, False
        return outputs

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        segment = ctx.segment
        if ctx.is_spent and segment.has_hidden_saves:
            raise RuntimeError(_BACKWARD_TWICE)
        ctx.is_spent = ctx.is_spent or not is_graph_kept()
        needed = [node is not None and will_engine_execute(node) for node, _ in ctx.next_functions]
        grads = ctx.region.backward(segment, ctx, ctx.saved_tensors, tangents, needed)
        return None, None, *grads


def _meta(tensor: torch.Tensor) -> TensorMeta:
    meta = tensor_meta(tensor)
    if meta is None:
        raise UnsupportedError("gradient that is not strided", str(tensor.layout))
    return meta


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else Sym(value.node.expr)


def _difference(cache: dict[BackwardKey, Any], key: BackwardKey) -> str:
    """What sets ``key`` apart from the closest of the keys before."""

    def differences(other: BackwardKey) -> list[str]:
        pairs = [("ambient state", other.ambient, key.ambient), ("needed gradients", other.needed, key.needed)]
        pairs += [(f"gradient {i}", a, b) for i, (a, b) in enumerate(zip(other.tangents, key.tangents, strict=False))]
        return [f"{name} was {old}, is {new}" for name, old, new in pairs if old != new]

    return min((differences(other) for other in cache), key=len)[0]
