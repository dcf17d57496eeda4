"""Compile the backward of a region's segments when they run, for the state they run in, and keep what was compiled.

    BackwardCache.grads: (segment, state of the call, saved tensors, tangents, needed) -> one gradient or None per exit

Three ways, from fast to universal: a Program for the key (grad mode off); a region of its own over tangents and saved
tensors (grad mode on: see Note [Higher order]); or the tape's nodes run as they are, which is eager itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import sympy
import torch

from gradc import garbage as collector
from gradc.ambient import Ambient, AutocastState, ambient, autocast_set_to, autocast_state, unsupported_mode
from gradc.analysis.segments import Segment
from gradc.backward.on_real_tensors import differentiate
from gradc.backward.settings import Settings
from gradc.backward.trace import (
    Backward,
    BackwardKey,
    fake_tangent,
    refuse_other_formulas,
    run_nodes,
    saved_name,
    trace_backward,
)
from gradc.errors import OP_ERRORS, UnsupportedError
from gradc.ir.program import Sym, TensorMeta
from gradc.ir.recorder import symbolic_number, tensor_meta
from gradc.ir.sizes import Sizes
from gradc.ir.verify import checked
from gradc.journal import count, fallback, log
from gradc.native import is_plan
from gradc.tape.ctx_state import giving_out, is_python, watching
from gradc.tape.tape import Tape, record
from gradc.tape.weight_casts import CacheError, weights_among
from gradc.torch_private import FAKE_TENSOR_ERRORS, GuardError, is_batched, settle_sizes

MAX_BACKWARDS = 512  # of one segment
MAX_SIZES = 8  # sets of sizes for which a tape with plain numbers is kept

_serials = itertools.count()


@dataclasses.dataclass(frozen=True)
class History:
    """What a derivative is made for besides the key.

    ``tangents``: of each that is defined, whether it requires a gradient, and whether it is a leaf. ``weights``: of each saved
    tensor, whether autocast keeps its copy; None if it keeps none.
    """

    tangents: tuple[tuple[bool, bool], ...]
    weights: tuple[bool, ...] | None


@dataclasses.dataclass(frozen=True)
class _Compiled:
    backward: Backward
    run: Callable[[list[Any]], list[Any]]


class Region(Protocol):
    """What is built of a tape: a function, and the backwards of its segments."""

    @property
    def segments(self) -> Sequence[Segment]: ...
    @property
    def backwards(self) -> BackwardCache: ...
    def __call__(self, *inputs: Any) -> list[Any]: ...
    def guarded(self, slow: Callable[..., Any]) -> Callable[..., Any]: ...


class BuildRegion(Protocol):
    """Makes a region of a tape, with the settings of the region that it is handed in by."""

    def __call__(self, tape: Tape, name: str, is_fine: bool = False) -> Region: ...


class BackwardCache:
    """The backwards of one region's segments. Safe under several threads: compiling holds the tape's lock.

    ``serial`` counts regions as they are compiled.
    """

    def __init__(
        self,
        tape: Tape,
        segments: Sequence[Segment],
        settings: Settings,
        name: str,
        build_region: BuildRegion,
        is_fine: bool = False,
    ) -> None:
        self.tape, self.segments, self.settings, self.name, self.is_fine = tape, segments, settings, name, is_fine
        self._build_region = build_region
        self.serial = next(_serials)
        self._of_sizes: dict[Sizes, BackwardCache] = {}
        self._compiled: list[dict[BackwardKey, _Compiled | None]] = [{} for _ in segments]
        self._derivatives: dict[Any, Callable[..., Sequence[Any]] | None] = {}

    def grads(
        self,
        segment: Segment,
        sizes: Sizes,
        saved: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        needed: Sequence[bool],
        is_repacked: bool,
        owned: Sequence[int],
    ) -> list[torch.Tensor | None]:
        """The gradients along the segment's exits, under the autocast that the region's setting names.

        ``saved`` are the unpacked tensors of ``segment.saved``; ``is_repacked`` tells that saved-tensors hooks made them;
        ``owned`` is that of ``BackwardKey``.
        """
        with self._forced_autocast():
            if torch.is_grad_enabled():
                return self._differentiable(segment, sizes, saved, tangents, needed)
            return self._replayed(segment, sizes, saved, tangents, needed, is_repacked, owned)

    @contextlib.contextmanager
    def _forced_autocast(self) -> Iterator[None]:
        """The autocast that the region's setting names, if it names one."""
        state = self.settings.backward_autocast
        with contextlib.nullcontext() if state is None else autocast_set_to(state):
            yield

    @torch.compiler.disable
    def compile_native(
        self, number: int, tangents: Any, needed: Any, adds_up: bool, owned: Sequence[int]
    ) -> tuple[Any, ...] | None:
        """For a live native node: the plan for the present state, with the fields of Backward; None if there is none."""
        segment = self.segments[number]
        with self._forced_autocast():
            try:
                key = dataclasses.replace(self._key(segment, tangents, needed), adds_up=adds_up, owned=tuple(owned))
                compiled = self._lookup(segment, key)
            except UnsupportedError as error:
                fallback(error.kind, error.detail, error.where)
                return None
        backward = compiled.backward
        if not is_plan(compiled.run):
            return None
        unread = tuple(sorted(set(backward.released) - set(backward.saved)))
        return compiled.run, backward.saved, backward.released, backward.frees_hidden, backward.views, unread

    @torch.compiler.disable
    def grads_native(
        self, number: int, symbols: Any, saved: Any, tangents: Any, needed: Any, is_repacked: bool, owned: Sequence[int]
    ) -> Any:
        """``grads`` for a live native node, which knows segments and symbols by number."""
        return self.grads(self.segments[number], self.sizes_of(symbols), saved, tangents, needed, is_repacked, owned)

    @torch.compiler.disable
    def differentiable_native(self, number: int, saved: Any, tangents: Any, needed: Any) -> Callable[..., Any] | None:
        """For a live native node under create_graph: what to call on the defined tangents, the saved tensors and the symbols.

        None where ``grads_native`` serves each call; one call, where it returns None.
        """
        return self._derivative_of(self.segments[number], saved, tangents, needed)

    def traced(self, number: int, tangents: Sequence[torch.Tensor | None], needed: Sequence[bool]) -> Backward | None:
        """What has been compiled for these gradients in the present state, for reports; None if nothing has."""
        segment = self.segments[number]
        with self._forced_autocast():
            try:
                key = self._key(segment, tangents, needed)
            except UnsupportedError:
                return None
        for known, compiled in self._compiled[number].items():
            if compiled is not None and dataclasses.replace(known, adds_up=False, owned=()) == key:
                return compiled.backward
        return None

    def sizes_of(self, symbols: Sequence[int]) -> Sizes:
        """The values of the tape's symbols, given in its order."""
        return Sizes({str(symbol): value for symbol, value in zip(self.tape.recorder.symbols, symbols, strict=True)})

    @property
    def has_code_of_others(self) -> bool:
        """True if a node is no formula of torch's own: it may keep tensors of the tape where nothing else can be given out."""
        nodes = (node for segment in self.segments for node in segment.nodes)
        return any(is_python(node) or type(node).__name__ == "CppFunction" for node in nodes)

    def compile_nominal(self) -> None:
        """Compile each segment's backward for the usual case: every gradient defined, laid out as its value, no autocast.

        Done while Dynamo still records guards on sizes, so that what cannot be differentiated shows up at once.

        Raises:
            UnsupportedError: the region is then for eager to run.
        """
        state = ambient(self.settings.backward_autocast or AutocastState())
        for segment in self.segments:
            with self.tape.fake_mode:
                metas = tuple(_nominal_tangent(*edge) for edge in segment.entries[: segment.num_tangents])
            undefined = (None,) * (len(segment.entries) - segment.num_tangents)
            self._trace(segment, BackwardKey(state, metas + undefined, (True,) * len(segment.exits)))

    # ---- grad mode off

    def _replayed(
        self, segment: Segment, sizes: Sizes, saved: Any, tangents: Any, needed: Any, is_repacked: bool, owned: Sequence[int]
    ) -> list[torch.Tensor | None]:
        try:
            if reason := unsupported_mode():
                raise UnsupportedError(f"{reason} during backward")
            key = dataclasses.replace(self._key(segment, tangents, needed), owned=tuple(owned))
            compiled = self._lookup(segment, key)
            if is_repacked:
                self._refuse_other_layout(compiled.backward, segment, saved, sizes)
        except UnsupportedError as error:
            fallback(error.kind, error.detail, error.where)
            return self._run_live(segment, sizes, saved, tangents, needed)
        values = [tangent for tangent in tangents if tangent is not None]
        values += [saved[position] for position in compiled.backward.saved]
        values += sizes.values.values()
        grads = compiled.run(values)
        for position in compiled.backward.views:
            grads[position] = torch.ops.aten.alias.default(grads[position])
        return grads

    def _key(self, segment: Segment, tangents: Any, needed: Any) -> BackwardKey:
        metas = tuple(
            None if tangent is None else _tangent_meta(edge, tangent)
            for edge, tangent in itertools.zip_longest(segment.inlets(len(tangents)), tangents)
        )
        return BackwardKey(ambient(autocast_state()), metas, tuple(needed))

    def _lookup(self, segment: Segment, key: BackwardKey) -> _Compiled:
        cache = self._compiled[segment.number]
        if key not in cache:
            settle_sizes(self.tape.fake_mode)
            with self.tape.lock:
                if key not in cache:
                    if cache:
                        log("recompiles", lambda: f"{self.name}, segment {segment.number}: {_difference(cache, key)}")
                    try:
                        self._trace(segment, key)
                    except (UnsupportedError, *FAKE_TENSOR_ERRORS, *OP_ERRORS) as error:  # what eager raises, it shall raise
                        cache[key] = None
                        log("fallbacks", f"{self.name}, segment {segment.number}: {error}")
        compiled = cache[key]
        if compiled is None:
            raise UnsupportedError("backward that cannot be traced", self.name)
        return compiled

    @collector.set_aside()
    def _trace(self, segment: Segment, key: BackwardKey) -> None:
        backward = trace_backward(self.tape, segment, key, f"backward_{segment.number}")
        checked(backward.program, "backward.trace")
        log("graphs", lambda: f"backward of segment {segment.number} of {self.name}\n{backward.program}")
        count("aot", "backward_compiles")
        known = self._compiled[segment.number]
        if len(known) >= MAX_BACKWARDS:
            known.clear()
        known[key] = _Compiled(backward, self.settings.lower(backward.program))

    def _refuse_other_layout(self, backward: Backward, segment: Segment, saved: Any, sizes: Sizes) -> None:
        for position in backward.saved:
            packed = tensor_meta(self.tape.saved[segment.saved[position]].fake)
            if packed is None or not _is_alike(packed, saved[position], sizes):
                raise UnsupportedError("saved-tensors hook that gives back another layout")

    def _run_live(self, segment: Segment, sizes: Sizes, saved: Any, tangents: Any, needed: Any) -> Any:
        """Eager itself: the tape's nodes on the real tensors."""
        static = self._static(sizes)
        same = static.segments[segment.number]
        by_index = dict(zip(same.saved, saved, strict=True))
        unpack = lambda index: by_index.get(index, static.tape.saved[index].fake)
        with static.tape.lock, static.tape.unpacking(unpack), giving_out(static.tape, same.nodes, unpack):
            return run_nodes(static.tape, same, tangents, needed)

    def _static(self, sizes: Sizes) -> BackwardCache:
        """These backwards over a tape with plain numbers for sizes: nodes that hold symbols cannot be run on real tensors."""
        if not self.tape.symints:
            return self
        if self.tape.again is None:
            raise UnsupportedError("backward of symbolic sizes that cannot be traced", self.name)
        with self.tape.lock:
            if sizes not in self._of_sizes:
                if len(self._of_sizes) >= MAX_SIZES:
                    self._of_sizes.clear()
                self._of_sizes[sizes] = self._with_sizes(self.tape.again(sizes))
            return self._of_sizes[sizes]

    def _with_sizes(self, tape: Tape) -> BackwardCache:
        region = self._build_region(tape, self.name, self.is_fine)
        if [_outline(segment) for segment in region.segments] != [_outline(segment) for segment in self.segments]:
            raise UnsupportedError("nodes that depend on sizes", self.name)
        return region.backwards

    # ---- grad mode on

    def _differentiable(self, segment: Segment, sizes: Sizes, saved: Any, tangents: Any, needed: Any) -> Any:
        region = self._derivative_of(segment, saved, tangents, needed)
        given = (tangent for tangent in tangents if tangent is not None)
        grads = region and region(*given, *saved, *sizes.values.values())
        return self._differentiate_live(segment, sizes, saved, tangents, needed) if grads is None else grads

    def _derivative_of(self, segment: Segment, saved: Any, tangents: Any, needed: Any) -> Callable[..., Any] | None:
        """The backward of ``segment`` for the present state, differentiable itself; None if there is none."""
        try:
            key = self._key(segment, tangents, needed)
        except UnsupportedError as error:
            fallback(error.kind, error.detail, error.where)
            return None
        flags = tuple((tangent.requires_grad, tangent.is_leaf) for tangent in tangents if tangent is not None)
        history = History(flags, weights_among(saved))
        place = segment.number, key, history
        if place not in self._derivatives:
            settle_sizes(self.tape.fake_mode)
            try:
                derivative = self._derivative(segment, key, history)
                self._derivatives[place] = derivative.guarded(torch.compiler.disable(_none_for_other_copies(derivative)))
            except (UnsupportedError, GuardError, *FAKE_TENSOR_ERRORS) as error:
                self._derivatives[place] = None
                log("fallbacks", f"{self.name}, segment {segment.number}: {error}")
        return self._derivatives[place]

    def _differentiate_live(self, segment: Segment, sizes: Sizes, saved: Any, tangents: Any, needed: Any) -> Any:
        fallback("derivative that cannot be traced", self.name)
        static = self._static(sizes)
        same = static.segments[segment.number]
        edges = [static.tape.saved[index].edge for index in same.saved]
        return differentiate(static.tape, same, edges, saved, tangents, needed, self._forced_autocast)

    def _derivative(self, segment: Segment, key: BackwardKey, history: History) -> Region:
        """The backward as a region: its inputs are the defined tangents, the saved tensors, and the symbols."""
        tape = self._derivative_tape(segment, key, history)
        return self._build_region(tape, f"derivative of {self.name}")

    def _derivative_tape(self, segment: Segment, key: BackwardKey, history: History) -> Tape:
        tape = self.tape
        refuse_other_formulas(tape, segment, create_graph=True)
        saved = [tape.saved[index] for index in segment.saved]
        with tape.fake_mode:
            fakes = [fake_tangent(tape, meta) for meta in key.tangents if meta is not None]
            inputs = [_with_history(fake, *flag) for fake, flag in zip(fakes, history.tangents, strict=True)]
            inputs += [_as_weight(value.fake, is_one) for value, is_one in itertools.zip_longest(saved, history.weights or ())]
        names = ["tangent"] * len(fakes) + [saved_name(tape, index) for index in segment.saved]
        edges = [None] * len(fakes) + [value.edge for value in saved] + [None] * len(tape.symints)

        def backward(derivative: Tape, *primals: Any) -> list[Any]:
            given = iter(primals[: len(fakes)])
            by_index = dict(zip(segment.saved, primals[len(fakes) :], strict=False))
            tangents = [None if meta is None else next(given) for meta in key.tangents]
            for index in segment.kept:
                derivative.recorder.identify(tape.saved[index].fake, by_index[index])
            with watching(tape, segment.nodes), tape.unpacking(lambda index: by_index.get(index, tape.saved[index].fake)):
                return run_nodes(tape, segment, tangents, key.needed, create_graph=True, recorder=derivative.recorder)

        with tape.lock, autocast_set_to(key.ambient.autocast), torch.enable_grad():
            derivative = record(
                backward,
                [*inputs, *tape.symints.values()],
                [*names, *map(str, tape.symints)],
                tape.fake_mode,
                f"{tape.recorder.name}_d",
                edges=edges,
                is_nested=history.weights is not None,
            )
        derivative.has_custom_ops |= tape.has_custom_ops
        if tape.symints:
            derivative.again = lambda sizes: self._derivative_again(segment, key, history, sizes)
        return derivative

    def _derivative_again(self, segment: Segment, key: BackwardKey, history: History, sizes: Any) -> Tape:
        tangents = tuple(None if meta is None else _with_sizes(meta, sizes) for meta in key.tangents)
        # Of two symbols found equal since, the derivative knows one.
        values = {str(symbol): sizes(symbolic_number(number)) for symbol, number in self.tape.symints.items()}
        static = self._static(Sizes(values))
        same = static.segments[segment.number]
        return static._derivative_tape(same, dataclasses.replace(key, tangents=tangents), history)


def _none_for_other_copies(derivative: Region) -> Callable[..., Any]:
    """``derivative``, but None if autocast keeps the copy of a weight in another dtype than the region was made for."""

    def call(*inputs: Any) -> list[Any] | None:
        with contextlib.suppress(CacheError):
            return derivative(*inputs)
        return None

    return call


def _as_weight(fake: torch.Tensor, is_weight: bool | None) -> torch.Tensor:
    """``fake``, a leaf or not as said, if it is."""
    if is_weight is None or not fake.requires_grad or fake.is_leaf == is_weight:
        return fake
    return _with_history(fake.detach(), True, is_weight)


def _with_history(fake: torch.Tensor, requires_grad: bool, is_leaf: bool) -> torch.Tensor:
    """``fake``, a leaf or not as said: autocast keeps its copies of leaves."""
    if not requires_grad:
        return fake
    with torch.enable_grad():
        return fake.requires_grad_() if is_leaf else fake.requires_grad_().view_as(fake)


def _with_sizes(meta: TensorMeta, sizes: Callable[[Any], Any]) -> TensorMeta:
    shape, stride = (tuple(sizes(number) for number in numbers) for numbers in (meta.shape, meta.stride))
    return dataclasses.replace(meta, shape=shape, stride=stride, offset=sizes(meta.offset))


def _outline(segment: Segment) -> tuple[Any, ...]:
    """What two cuts of the same function have in common, whatever its sizes."""
    exits = tuple((exit_.position, exit_.primal, exit_.entry) for exit_ in segment.exits)
    return [node.name() for node in segment.nodes], len(segment.entries), segment.num_tangents, exits, len(segment.saved)


def _nominal_tangent(node: Any, number: int) -> TensorMeta:
    """The layout of a gradient like the value: a fresh contiguous tensor."""
    expected = node._input_metadata[number]
    return _meta(torch.empty(expected.shape, dtype=expected.dtype, device=expected.device))


def _tangent_meta(edge: Any, tangent: torch.Tensor) -> TensorMeta:
    """The layout of a tangent, with symbolic sizes where the tape's are symbolic."""
    if type(tangent) is not torch.Tensor and type(tangent) is not torch.nn.Parameter:
        raise UnsupportedError("gradient of a tensor subclass", type(tangent).__name__)
    if is_batched(tangent):  # its ops are other ops: a product of it is one of all samples
        raise UnsupportedError("function transform during backward")
    if tangent._is_zerotensor():
        raise UnsupportedError("gradient that is a lazy zero")
    meta = dataclasses.replace(_meta(tangent), offset=0)
    node, number = edge
    shape = tuple(symbolic_number(size) for size in node._input_metadata[number].shape)
    if not any(isinstance(size, Sym) for size in shape):
        return meta
    return dataclasses.replace(meta, shape=shape, stride=_symbolic_stride(shape, tangent))


def _symbolic_stride(shape: tuple[Any, ...], tangent: torch.Tensor) -> tuple[Any, ...]:
    """The strides of a tangent: over the symbols of its shape if it is dense but for expanded dimensions, or as they are."""
    sizes, strides = tangent.size(), tangent.stride()
    order = sorted(range(tangent.dim()), key=lambda d: (strides[d], sizes[d]))
    if tangent.is_contiguous():
        order = list(reversed(range(tangent.dim())))
    found: list[Any] = list(strides)
    number, expr = 1, sympy.Integer(1)
    for dim in order:
        if strides[dim] == 0 and sizes[dim] != 1:
            continue
        if strides[dim] == number:
            found[dim] = int(expr) if expr.is_number else Sym(expr)
        elif sizes[dim] != 1:
            return strides
        size = shape[dim]
        number *= sizes[dim]
        expr = expr * (size.expr if isinstance(size, Sym) else size)
    return tuple(found)


def _is_alike(packed: TensorMeta, tensor: torch.Tensor, sizes: Sizes) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    if (packed.dtype, packed.device) != (tensor.dtype, tensor.device):
        return False
    if (packed.is_conj, packed.is_neg) != (tensor.is_conj(), tensor.is_neg()):
        return False
    return [sizes(number) for number in (*packed.shape, *packed.stride)] == [*tensor.shape, *tensor.stride()]


def _meta(tensor: torch.Tensor) -> TensorMeta:
    meta = tensor_meta(tensor)
    if meta is None:
        raise UnsupportedError("gradient that is not strided", str(tensor.layout))
    return meta


def _difference(cache: dict[BackwardKey, Any], key: BackwardKey) -> str:
    """What sets ``key`` apart from the closest of the keys before."""

    def differences(other: BackwardKey) -> list[str]:
        pairs: list[tuple[str, Any, Any]] = [
            (field.name, getattr(other.ambient, field.name), getattr(key.ambient, field.name))
            for field in dataclasses.fields(Ambient)
        ]
        pairs.append(("needed gradients", other.needed, key.needed))
        pairs.append(("adding up here", other.adds_up, key.adds_up))
        pairs.append(("gradients that sums are written over", other.owned, key.owned))
        pairs += [(f"gradient {i}", a, b) for i, (a, b) in enumerate(zip(other.tangents, key.tangents, strict=True))]
        return [f"{name} was {old}, is {new}" for name, old, new in pairs if old != new]

    closest: list[str] = min(map(differences, cache), key=len)
    return "; ".join(closest)
