"""Compile the backward of a region's segments when they run, for the state they run in, and keep what was compiled.

    BackwardCache.grads: BackwardCall -> one gradient or None per exit

Three ways, from fast to universal: a Program for the key (grad mode off); a region of its own over tangents and saved
tensors (grad mode on: see Note [Higher order]); or the tape's nodes run as they are, which is eager itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from gradc import garbage as collector
from gradc import native
from gradc.ambient import AutocastState, autocast_set_to, unsupported_mode
from gradc.analysis.segments import Segment
from gradc.backward.bounded_cache import BoundedCache
from gradc.backward.derivative import History, history_of, record_derivative, record_specialized, sizes_of_parent
from gradc.backward.key import BackwardKey, closest, key_of, nominal_key
from gradc.backward.lazy_unpack import HookedCall, InTurn, Run, Unpacked, is_alike
from gradc.backward.on_real_tensors import differentiate, run_on_real_tensors
from gradc.backward.settings import Settings
from gradc.backward.specialized import CutTape, Retrace, Specialized
from gradc.backward.trace import Backward, Layouts, released, trace_backward
from gradc.errors import OP_ERRORS, UnsupportedError, is_passing
from gradc.executor import is_plan
from gradc.ir.floats import refuse_difference
from gradc.ir.metadata import tensor_meta
from gradc.ir.program import Program
from gradc.ir.sizes import Sizes
from gradc.ir.text import print_program
from gradc.journal import Fallback, count, fallback, log, note_compiled
from gradc.nodes.backward_call import BackwardCall
from gradc.policy.budget import paid
from gradc.tape.ctx_state import is_python
from gradc.tape.node_facts import RUNS_CPP_OF_OTHERS
from gradc.tape.tape import Tape
from gradc.tape.weight_casts import CacheError
from gradc.torch_private.fakes import FAKE_TENSOR_ERRORS, GuardError, settle_sizes
from gradc.torch_private.quiet import quiet, saying_only_once

MAX_COMPILED = 512  # backwards of one segment, and derivatives of one region: as many as a native region keeps

_CANNOT_TRACE = (UnsupportedError, *FAKE_TENSOR_ERRORS, *OP_ERRORS, AssertionError)  # what eager raises, it shall raise
_CANNOT_DERIVE = (UnsupportedError, GuardError, *FAKE_TENSOR_ERRORS, AssertionError)  # of torch's own, over fake tensors

# The order of its additions follows from what two threads have counted: see Note [Higher order].
HIGHER_ORDER_ELSEWHERE = "gradient of a gradient on another device than the CPU"

_serials = itertools.count()
_Derivative = Callable[..., Sequence[Any] | None]  # None for copies of weights in other dtypes than it was made for


class Region(Protocol):
    """What is built of a tape: a function, and the backwards of its segments."""

    @property
    def segments(self) -> Sequence[Segment]: ...
    @property
    def backwards(self) -> BackwardCache: ...
    def __call__(self, *inputs: Any) -> list[Any]: ...
    def guarded(self, slow: Callable[..., Any]) -> Callable[..., Any]: ...


class Join(Protocol):
    """Makes one Program of a region's forward and the backward of its one segment; None where they have to stay apart."""

    def __call__(self, segment: Segment, backward: Backward) -> Program | None: ...


class BuildRegion(Protocol):
    """Makes a region of a tape, with the settings of the region that it is handed in by."""

    def __call__(
        self, tape: Tape, name: str, *, is_split_at_leaves: bool = False, is_split_at_nodes: bool = False
    ) -> Region: ...


class Expand(Protocol):
    """What a segment is expanded into: see nodes/csrc/expand.h. None where it stays as it is."""

    def __call__(self, number: int, sizes: Sizes) -> tuple[Any, ...] | None: ...


@dataclasses.dataclass(frozen=True)
class _Compiled:
    backward: Backward
    run: Callable[[list[Any]], list[Any]]


class BackwardCache:
    """The backwards of one region's segments. Safe under several threads: who compiles holds the tape's lock.

    Whatever cannot be compiled is kept with the reason, which is told each time that it is asked for. ``serial`` counts
    regions as they are compiled.
    """

    def __init__(
        self,
        tape: Tape,
        segments: Sequence[Segment],
        settings: Settings,
        name: str,
        build_region: BuildRegion,
        join: Join,
        expand: Expand,
        *,
        is_split_at_leaves: bool = False,
        is_split_at_nodes: bool = False,
    ) -> None:
        self.tape, self.segments, self.settings, self.name = tape, segments, settings, name
        self.serial = next(_serials)
        note_compiled()
        self._build_region, self._join, self._expand, self.is_eager = build_region, join, expand, is_split_at_nodes
        self._compiled: list[BoundedCache[BackwardKey, _Compiled | Fallback]] = [
            BoundedCache(MAX_COMPILED, tape.lock) for _ in segments
        ]
        self._derivatives: BoundedCache[tuple[int, BackwardKey, History], _Derivative | Fallback] = BoundedCache(
            MAX_COMPILED, tape.lock
        )
        self._in_turn = InTurn(tape, MAX_COMPILED)
        cuts = {"is_split_at_leaves": is_split_at_leaves, "is_split_at_nodes": is_split_at_nodes}
        cut = lambda tape: build_region(tape, name, **cuts).segments
        self._specialized = Specialized(CutTape(tape, segments), tape.retrace, cut, name)

    def grads(self, call: BackwardCall) -> Sequence[torch.Tensor | None]:
        """The gradients along the segment's exits, under the autocast that the region's setting names.

        Raises:
            FallbackError: where eager would have to run it, under ``fullgraph``.
            RuntimeError: eager's, where a node runs that saved what was written into afterwards.
        """
        self._refuse_spoilt(call)
        with self._forced_autocast():
            if self.is_eager:
                return self._run_eagerly(call)
            try:
                run = self._derived(call) if torch.is_grad_enabled() else self._replayed(call)
            except UnsupportedError as error:
                reason = Fallback(error.kind, error.detail, error.where)
            else:
                return run()
            fallback(reason.kind, reason.detail, reason.where, fullgraph=self.settings.fullgraph)
            return self._run_eagerly(call)

    def _refuse_spoilt(self, call: BackwardCall) -> None:
        segment = call.segment
        spoilt = {position: words for position, index in enumerate(segment.saved) if (words := self.tape.saved[index].spoilt)}
        read = released(segment, call.tangents, call.needed)[0] if spoilt else ()
        if words := next((spoilt[position] for position in read if position in spoilt), ""):
            raise RuntimeError(words)

    @contextlib.contextmanager
    def _forced_autocast(self) -> Iterator[None]:
        """The autocast that the region's setting names, if it names one."""
        state = self.settings.backward_autocast
        with contextlib.nullcontext() if state is None else autocast_set_to(state):
            yield

    def _run_eagerly(self, call: BackwardCall) -> list[torch.Tensor | None]:
        """Eager itself: the tape's nodes on the real tensors."""
        plain = self._specialized.at(call.sizes)
        call = dataclasses.replace(call, segment=plain.segments[call.segment.number])
        if torch.is_grad_enabled():
            edges = [plain.tape.saved[index].edge for index in call.segment.saved]
            return differentiate(plain.tape, call, edges, self._forced_autocast)
        return run_on_real_tensors(plain.tape, call)

    # ---- what native nodes ask, which know segments and symbols by number

    @torch.compiler.disable
    def compile_native(
        self, number: int, tangents: Any, needed: Any, adds_up: bool, stealable: Sequence[int]
    ) -> tuple[Any, ...] | None:
        """The plan for the present state, with the fields of Backward; None if there is none: ``grads_native`` says why."""
        segment = self.segments[number]
        if self.is_eager:
            return None
        with self._forced_autocast(), self._raising_under_fullgraph():
            key = dataclasses.replace(key_of(segment, tangents, needed, stealable), adds_up=adds_up)
            compiled = self._lookup(segment, key)
            if is_plan(compiled.run):
                backward = compiled.backward
                unread = tuple(sorted(set(backward.released) - set(backward.saved)))
                freed = backward.released, backward.frees_hidden
                form = backward.views, backward.plain_views, backward.recounted
                return compiled.run, backward.saved, *freed, *form, unread
        return None

    @torch.compiler.disable
    @collector.set_aside()
    @paid()
    def join_native(self, number: int, tangents: Any, needed: Any, adds_up: bool) -> Run | None:
        """The plan of the region's forward and the backward that ``compile_native`` gives, in one; None if there is none."""
        segment = self.segments[number]
        with self._forced_autocast(), contextlib.suppress(UnsupportedError):
            key = dataclasses.replace(key_of(segment, tangents, needed), adds_up=adds_up)
            program = self._join(segment, self._lookup(segment, key).backward)
            if program is None:
                return None
            log("graphs", lambda: f"forward and backward of {self.name}\n{print_program(program)}")
            run = self.settings.lower(program)
            return run if is_plan(run) else None
        return None

    @torch.compiler.disable
    def grads_native(
        self,
        number: int,
        symbols: Any,
        saved: Any,
        tangents: Any,
        needed: Any,
        is_repacked: bool,
        stealable: Sequence[int],
        let_go: list[int],
    ) -> Sequence[torch.Tensor | None]:
        """``grads``."""
        segment, sizes = self.segments[number], self.sizes_of(symbols)
        return self.grads(BackwardCall(segment, sizes, saved, tangents, needed, is_repacked, tuple(stealable), let_go))

    def released_native(self, number: int, tangents: Any, needed: Any) -> tuple[tuple[int, ...], bool]:
        """What a backward without retain_graph frees: as ``released`` and ``frees_hidden`` of Backward."""
        return released(self.segments[number], tangents, needed)

    @torch.compiler.disable
    def grads_in_turn(
        self,
        number: int,
        symbols: Any,
        unpack: Callable[[int], torch.Tensor],
        tangents: Any,
        needed: Any,
        stealable: Sequence[int],
    ) -> Sequence[torch.Tensor | None]:
        """``grads`` with grad mode off, of a node whose saved tensors hooks packed: ``unpack`` gives the one at a position."""
        segment, unpacked, stealable = self.segments[number], Unpacked(unpack), tuple(stealable)
        call = HookedCall(segment, self.sizes_of(symbols), unpacked, tangents)
        with self._forced_autocast():
            try:
                if mode := unsupported_mode():
                    raise UnsupportedError(f"{mode} during backward")
                return self._in_turn.run(key_of(segment, tangents, needed, stealable), call, self._compile_in_turn)
            except UnsupportedError as error:
                reason = Fallback(error.kind, error.detail, error.where)
            fallback(reason.kind, reason.detail, reason.where, fullgraph=self.settings.fullgraph)
            read = {*released(segment, tangents, needed)[0], *map(segment.saved.index, segment.on_ctx)}
            saved: list[Any] = [unpacked(position) if position in read else None for position in range(len(segment.saved))]
            return self._run_eagerly(BackwardCall(segment, call.sizes, saved, tangents, needed, True, stealable))

    @torch.compiler.disable
    def differentiable_native(self, number: int, saved: Any, tangents: Any, needed: Any) -> _Derivative | None:
        """Under create_graph: what to call on the defined tangents, the saved tensors and the symbols.

        None where ``grads_native`` serves each call; one call, where it returns None.
        """
        if self.is_eager:
            return None
        with self._raising_under_fullgraph():
            return self._derivative_of(self.segments[number], saved, tangents, needed)
        return None

    @torch.compiler.disable
    def expand_native(self, number: int, symbols: Sequence[int]) -> tuple[Any, ...] | None:
        """What the segment is expanded into: see nodes/csrc/expand.h. Counted: what it stands for runs eagerly."""
        found: list[tuple[Any, ...] | None] = []
        where = self.tape.line_of(self.segments[number].nodes[-1])
        fallback(HIGHER_ORDER_ELSEWHERE, self.name, where, fullgraph=self.settings.fullgraph)

        def expand() -> None:
            with self.tape.lock, collector.set_aside(), quiet(), paid():
                found.append(self._expand(number, self.sizes_of(symbols)))

        native.extension.call_elsewhere(expand)
        return found[0]

    def prepare(self, sizes: Sizes) -> None:
        """Have what runs eagerly at these sizes at hand."""
        self._specialized.at(sizes)

    @contextlib.contextmanager
    def _raising_under_fullgraph(self) -> Iterator[None]:
        """Leave what is unsupported for ``grads`` to tell, or tell it now: the node still has what it saved."""
        try:
            yield
        except UnsupportedError as error:
            reason = error
        else:
            return
        if self.settings.fullgraph:
            fallback(reason.kind, reason.detail, reason.where, fullgraph=True)

    # ---- what reports and the frontend ask

    def traced(self, number: int, tangents: Sequence[torch.Tensor | None], needed: Sequence[bool]) -> Backward | None:
        """What has been compiled for these gradients in the present state, for reports; None if nothing has."""
        with self._forced_autocast():
            try:
                key = key_of(self.segments[number], tangents, needed)
            except UnsupportedError:
                return None
        for known, compiled in self._compiled[number].items():
            if isinstance(compiled, _Compiled) and dataclasses.replace(known, adds_up=False, stealable=()) == key:
                return compiled.backward
        return None

    def sizes_of(self, symbols: Sequence[int]) -> Sizes:
        """The values of the tape's symbols, given in its order."""
        return Sizes({symbol.name: value for symbol, value in zip(self.tape.program.symbols, symbols, strict=True)})

    @property
    def has_code_of_others(self) -> bool:
        """True if a node is no formula of torch's own: it may keep tensors of the tape where nothing else can be given out."""
        nodes = (node for segment in self.segments for node in segment.nodes)
        return any(is_python(node) or node in RUNS_CPP_OF_OTHERS for node in nodes)

    def compile_nominal(self) -> None:
        """Compile each segment's backward for the usual case: every gradient defined, laid out as its value, no autocast.

        Done while Dynamo still records guards on sizes, so that what cannot be differentiated shows up at once.

        Raises:
            UnsupportedError: the region is then for eager to run.
        """
        for segment in self.segments:
            key = nominal_key(self.tape, segment, self.settings.backward_autocast or AutocastState())
            self._compiled[segment.number].get(key, lambda: self._compile(segment, key))  # noqa: B023 - called at once

    # ---- grad mode off

    def _replayed(self, call: BackwardCall) -> Callable[[], list[Any]]:
        """How to replay the Program that was compiled for such a call."""
        if reason := unsupported_mode():
            raise UnsupportedError(f"{reason} during backward")
        compiled = self._lookup(call.segment, key_of(call.segment, call.tangents, call.needed, call.stealable))
        if call.is_repacked:
            self._refuse_other_layout(compiled.backward, call)
        return lambda: _replay(compiled, call)

    def _lookup(self, segment: Segment, key: BackwardKey) -> _Compiled:
        found = self._compiled[segment.number].get(key, lambda: self._compile_or_refuse(segment, key))
        if isinstance(found, Fallback):
            raise UnsupportedError(found.kind, found.detail, found.where)
        return found

    def _compile_or_refuse(self, segment: Segment, key: BackwardKey) -> _Compiled | Fallback:
        settle_sizes(self.tape.fake_mode)
        if earlier := [known for known, _ in self._compiled[segment.number].items()]:
            log("recompiles", lambda: f"{self.name}, segment {segment.number}: {_what_changed(earlier, key)}")
        try:
            return self._compile(segment, key)
        except _CANNOT_TRACE as error:
            return self._refusal("backward that cannot be traced", segment, error)

    def _compile_in_turn(self, segment: Segment, key: BackwardKey, layouts: Layouts) -> tuple[Backward, Run] | Fallback:
        settle_sizes(self.tape.fake_mode)
        try:
            compiled = self._compile(segment, key, layouts)
        except _CANNOT_TRACE as error:
            return self._refusal("backward that cannot be traced", segment, error)
        return compiled.backward, compiled.run

    @collector.set_aside()
    @quiet()
    @saying_only_once()
    @paid()
    def _compile(self, segment: Segment, key: BackwardKey, layouts: Layouts | None = None) -> _Compiled:
        backward = self._trace(self.tape, segment, key, layouts)
        if self._twin is not None:
            twin = self._trace(self._twin.tape, self._twin.segments[segment.number], key, layouts)
            refuse_difference(backward.program, twin.program)
        log("graphs", lambda: f"backward of segment {segment.number} of {self.name}\n{print_program(backward.program)}")
        count("aot", "backward_compiles")
        note_compiled()
        return _Compiled(backward, self.settings.lower(backward.program))

    @functools.cached_property
    def _twin(self) -> CutTape | None:
        """The same tape with other floats in the place of inputs."""
        return None if self.tape.twin is None else self._specialized.cut_alike(self.tape.twin)

    @staticmethod
    def _trace(tape: Tape, segment: Segment, key: BackwardKey, layouts: Layouts | None) -> Backward:
        return trace_backward(tape, segment, key, f"backward_{segment.number}", layouts)

    def _refusal(self, kind: str, segment: Segment, error: Exception) -> Fallback:
        """Why the segment cannot be compiled, to be kept; but what says nothing about the segment is raised again."""
        if is_passing(error):
            raise error
        if isinstance(error, UnsupportedError):
            return Fallback(kind, str(error), error.where or self.tape.line_of(segment.nodes[0]))
        message = str(error).split("\n")[0]
        return Fallback(kind, f"{type(error).__name__}: {message}", self.tape.line_of(segment.nodes[0]))

    def _refuse_other_layout(self, backward: Backward, call: BackwardCall) -> None:
        for position in backward.saved:
            packed = tensor_meta(self.tape.saved[call.segment.saved[position]].fake)
            if packed is None or not is_alike(packed, call.saved[position], call.sizes):
                raise UnsupportedError("saved-tensors hook that gives back another layout")

    # ---- grad mode on

    def _derived(self, call: BackwardCall) -> Callable[[], Sequence[Any]]:
        """How to give back the gradients that the derivative for such a call has made."""
        if any(self.tape.saved[index].spoilt for index in call.segment.saved):
            raise UnsupportedError("saved tensor modified in place inside the region", "in a segment that runs in part")
        derivative = self._derivative_of(call.segment, call.saved, call.tangents, call.needed)
        grads = derivative(*call.defined, *call.saved, *call.sizes.values.values())
        if grads is None:
            raise UnsupportedError("derivative that cannot be traced", "weights that autocast keeps other copies of")
        return lambda: grads

    def _derivative_of(self, segment: Segment, saved: Any, tangents: Any, needed: Any) -> _Derivative:
        """The backward of ``segment`` for the present state, differentiable itself."""
        key, history = key_of(segment, tangents, needed), history_of(tangents, saved)
        place = segment.number, key, history
        found = self._derivatives.get(place, lambda: self._derive_or_refuse(segment, key, history))
        if isinstance(found, Fallback):
            raise UnsupportedError(found.kind, found.detail, found.where)
        return found

    @paid()
    def _derive_or_refuse(self, segment: Segment, key: BackwardKey, history: History) -> _Derivative | Fallback:
        settle_sizes(self.tape.fake_mode)
        try:
            tape = record_derivative(self.tape, segment, key, history)
            if self._twin is not None:
                twin = record_derivative(self._twin.tape, self._twin.segments[segment.number], key, history)
                refuse_difference(tape.program, twin.program)
                tape = dataclasses.replace(tape, twin=twin)
            if self.tape.symints:
                tape = dataclasses.replace(tape, retrace=self._retrace_of_derivative(segment, key, history))
            derivative = self._build_region(tape, f"derivative of {self.name}")
            return derivative.guarded(torch.compiler.disable(_none_for_other_copies(derivative)))
        except _CANNOT_DERIVE as error:
            return self._refusal("derivative that cannot be traced", segment, error)

    def _retrace_of_derivative(self, segment: Segment, key: BackwardKey, history: History) -> Retrace:
        def retrace(sizes: Callable[[Any], Any]) -> Tape:
            plain = self._specialized.at(sizes_of_parent(self.tape, sizes))
            return record_specialized(plain, segment, key, history, sizes)

        return retrace


def _replay(compiled: _Compiled, call: BackwardCall) -> list[Any]:
    saved = [call.saved[position] for position in compiled.backward.saved]
    grads = compiled.run([*call.defined, *saved, *call.sizes.values.values()])
    return compiled.backward.as_in_eager(grads)


def _none_for_other_copies(derivative: Region) -> _Derivative:
    """``derivative``, but None if autocast keeps the copy of a weight in another dtype than the region was made for."""

    def call(*inputs: Any) -> list[Any] | None:
        with contextlib.suppress(CacheError):
            return derivative(*inputs)
        return None

    return call


def _what_changed(earlier: list[BackwardKey], key: BackwardKey) -> str:
    other, differences = closest(earlier, key)
    return f"{'; '.join(differences)}\n  closest of {len(earlier)} before: {other}"
