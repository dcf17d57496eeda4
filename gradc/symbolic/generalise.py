"""Make one recording of a backward serve other sizes: trace it with symbolic sizes, and prove the trace.

    fit:        sizes met so far -> Terms            every number of the key as coefficient * symbols
    trace:      Walk, numbers -> Trace               the formulas of the live nodes, run on fake tensors
    generalise: Walk, Terms, Earlier -> General      a trace with symbols, to be compared with the capture that follows
    General.agrees(Trace, values)                    does the trace make these calls at these sizes?
    General.is_proven(Walk, values)                  does it hold for sizes not met before?

Nothing is guessed: a trace is used only if it equals a live capture call by call, and at other sizes only if all conditions
that tracing relied on hold there, or if tracing again at exactly these sizes makes the same calls.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from gradc import native
from gradc.capture.capture import Boundary, Capture, Ran, Term
from gradc.errors import UnsupportedError
from gradc.ir.program import Instruction, Ref, Sym, leaves, map_leaves
from gradc.ir.text import symbolic
from gradc.torch_private import FakeTensorMode, new_shape_env, new_symint

Numbers = Sequence[Any]  # ints, or SymInts while tracing
Values = Sequence[int]


@dataclasses.dataclass(frozen=True)
class Fit:
    """The numbers of a walk as Terms of some symbols; ``sources`` says which number each symbol is."""

    terms: list[Term]
    sources: list[int]


@dataclasses.dataclass
class Earlier:
    """What captures of one structure left behind: the numbers of each, and the boundaries of the last."""

    points: list[list[int]]
    boundaries: list[Boundary]
    num_refusals: int = 0


def fit(points: Sequence[Values]) -> Fit:
    """Express what differs between the points by as few symbols as can be; the smallest numbers become symbols."""
    columns = list(zip(*points, strict=True))
    changing = sorted({column for column in columns if len(set(column)) > 1}, key=lambda c: [(abs(n), n < 0) for n in c])
    symbols: list[tuple[int, ...]] = []
    known: dict[tuple[int, ...], Term] = {}
    for column in changing:
        term = _term(column, symbols)
        if term is None:
            symbols.append(column)
            term = (1, (len(symbols) - 1,))
        known[column] = term
    terms = [known.get(column, column[0]) for column in columns]
    return Fit(terms, [columns.index(symbol) for symbol in symbols])


def fit_sizes(walk: Any) -> Fit:
    """As ``fit``, from one point: what leaves have stays fixed, every other size of a tensor becomes a symbol."""
    numbers = walk.numbers
    leaf_nodes = [node for node in range(walk.num_nodes) if walk.is_leaf(node)]
    leaf_storage = {walk.variable(node).untyped_storage()._cdata for node in leaf_nodes}
    fixed = {0, 1, -1}
    for node in leaf_nodes:
        fixed |= {*walk.variable(node).shape, *walk.variable(node).stride(), walk.variable(node).numel()}
    sizes = {
        size
        for tensor in walk.tensors
        if tensor.untyped_storage()._cdata not in leaf_storage
        for size in tensor.shape
        if size not in fixed
    }
    symbols: list[tuple[int, ...]] = [(size,) for size in sorted(sizes)]
    terms: list[Term] = [number if number in fixed else (_term((number,), symbols) or number) for number in numbers]
    return Fit(terms, [numbers.index(symbol) for (symbol,) in symbols])


def evaluate(term: Term, values: Numbers) -> Any:
    """The number that a Term stands for."""
    if isinstance(term, int):
        return term
    number: Any = term[0]
    for symbol in term[1]:
        number = number * values[symbol]
    return number


@dataclasses.dataclass
class Trace:
    """What a capture or trace recorded, without its tensors, and without calls that make another handle of a value."""

    inputs: list[int]
    slots: list[Any]
    constants: dict[int, torch.Tensor]
    instructions: list[Instruction]
    events: list[Ran | Boundary]
    results: list[int]

    @classmethod
    def of(cls, capture: Capture) -> Trace:
        recorder, source = capture.recorder, {-1: -1, **capture.twins}
        kept: list[Instruction] = []
        before = [0]  # how many calls are kept before each
        for call in recorder.instructions:
            if call.op is torch.ops.aten.detach.default and call.outs[0] is not None:
                base = call.args[0].slot
                source[call.outs[0]] = source.get(base, base)
            else:
                kept.append(dataclasses.replace(call, args=_renamed(call.args, source), kwargs=_renamed(call.kwargs, source)))
            before.append(len(kept))
        events = [_moved(event, before, source) for event in capture.events]
        inputs = _sources(capture.inputs, source)
        return cls(inputs, recorder.slots, recorder.constants, kept, events, _sources(capture.results, source))

    def used(self) -> set[int]:
        """The slots that something reads."""
        read = {leaf.slot for call in self.instructions for leaf in leaves((call.args, call.kwargs)) if isinstance(leaf, Ref)}
        for event in self.events:
            read |= {*event.inputs, event.grad} if isinstance(event, Ran) else {*event.inputs, *event.waiting}
        return read.union(self.results)


def _renamed(tree: Any, source: dict[int, int]) -> Any:
    return map_leaves(lambda leaf: Ref(source.get(leaf.slot, leaf.slot)) if isinstance(leaf, Ref) else leaf, tree)


def _sources(slots: Sequence[int], source: dict[int, int]) -> list[int]:
    return [source.get(slot, slot) for slot in slots]


def _moved(event: Ran | Boundary, before: list[int], source: dict[int, int]) -> Ran | Boundary:
    inputs = _sources(event.inputs, source)
    if isinstance(event, Ran):
        calls = before[event.calls[0]], before[event.calls[1]]
        return dataclasses.replace(event, calls=calls, inputs=inputs, grad=source.get(event.grad, event.grad))
    return dataclasses.replace(
        event,
        position=before[event.position],
        inputs=inputs,
        outputs=_sources(event.outputs, source),
        not_ready=[(node, _sources(slots, source)) for node, slots in event.not_ready],
        ready=[(node, _sources(slots, source)) for node, slots in event.ready],
        results=_sources(event.results, source),
    )


class General:
    """A symbolic trace. ``names`` are the symbols in the order of their values; ``holds`` the conditions it relied on."""

    def __init__(self, fit: Fit, capture: Capture, boundaries: list[Boundary], env: Any, names: list[sympy.Symbol]) -> None:
        self.fit, self.capture, self.names, self.boundaries = fit, capture, names, boundaries
        self.trace = Trace.of(capture)
        self.holds = _conditions(env, names)

    def agrees(self, other: Trace, values: Values) -> bool:
        """Does the trace, at these sizes, make the calls of ``other``, in the same order, on the same values?"""
        return _Comparison(self, values).is_same(other)

    def is_proven(self, walk: Any, values: Values) -> bool:
        """Is the trace right for the walked graph, whose sizes these are?"""
        if all(value > 1 for value in values) and self.holds(values):
            return True
        numbers = [evaluate(term, values) for term in self.fit.terms]
        try:
            return self.agrees(Trace.of(trace(walk, numbers, self.boundaries)), values)
        except UnsupportedError:
            return False


def generalise(walk: Any, fitted: Fit, boundaries: list[Boundary]) -> General:
    """Trace the walked graph with symbols in place of what changes.

    Raises:
        UnsupportedError: if it cannot be traced, or only for sizes that are not free to change.
    """
    if not fitted.sources or any(walk.numbers[source] < 0 for source in fitted.sources):
        raise UnsupportedError("change that no size explains")
    env = new_shape_env()
    hints = _hints([walk.numbers[source] for source in fitted.sources])
    values = [new_symint(env, f"size_{number}", hint) for number, hint in enumerate(hints)]
    names = [value.node.expr for value in values]
    numbers = [evaluate(term, values) for term in fitted.terms]
    capture = trace(walk, numbers, boundaries, env)
    if any(symbol in env.replacements for symbol in names):
        raise UnsupportedError("formula that fixes a size")
    is_owned = {boundary.node: boundary.is_owned for boundary in boundaries}
    for boundary in capture.boundaries:
        boundary.is_owned = is_owned[boundary.node]
        boundary.metadata = [(head, [_as_term(n, names) for n in numbers]) for head, numbers in boundary.metadata]
    return General(fitted, capture, boundaries, env, names)


def trace(walk: Any, numbers: Numbers, boundaries: list[Boundary], env: Any = None) -> Capture:
    """Run the formulas of the walked nodes on fake tensors of the given sizes. The live graph keeps what it saved.

    Raises:
        UnsupportedError: if a formula does not run on fake tensors.
    """
    extension = native.extension()
    assert extension is not None
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    try:
        with mode, torch.no_grad():
            tensors = _stand_ins(walk, numbers)
            results = {boundary.node: _results(walk, boundary, numbers) for boundary in boundaries}
        observer = _TraceCapture(walk, tensors, mode, {node: heads for node, (_, heads) in results.items()})
        fakes = {node: outputs for node, (outputs, _) in results.items()}
        found = extension.trace(walk, observer, tensors, list(numbers), fakes)
        observer.results = observer._slots(found)
        observer._fail_if_tainted()
    except UnsupportedError:
        raise
    except Exception as error:  # whatever a formula meets that it cannot do without data
        raise UnsupportedError("backward that cannot be traced", f"{type(error).__name__}: {error}") from error
    if observer.failure:
        raise UnsupportedError(observer.failure)
    observer.forget_tensors()
    return observer


class _TraceCapture(Capture):
    """A Capture of fake tensors. ``heads`` are the bytes, sizes and strides of what boundaries return."""

    def __init__(self, walk: Any, tensors: list[torch.Tensor], mode: Any, heads: dict[int, list[Any]]) -> None:
        super().__init__(walk, tensors)
        self._mode, self._heads = mode, heads

    def begin(self) -> None:
        self._mode.__enter__()
        super().begin()

    def end(self) -> None:
        super().end()
        self._mode.__exit__(None, None, None)

    def _metadata(self, node: int, outputs: list[Any]) -> list[Any]:
        return list(self._heads[node])

    def _note_region(self, node: int, gradients: list[torch.Tensor | None]) -> None:
        """The live capture reports regions."""


# ---- stand-ins


def _stand_ins(walk: Any, numbers: Numbers) -> list[torch.Tensor]:
    """Fake tensors in place of the walked ones, sharing memory as they do. Numbers in tensors stay what they are."""
    extension = native.extension()
    assert extension is not None
    memory, lowest = _memory(walk, numbers), _lowest_offsets(walk, numbers)
    first: dict[int, torch.Tensor] = {}
    made: list[torch.Tensor] = []
    for tensor, start in zip(walk.tensors, walk.tensor_numbers, strict=True):
        if extension.is_wrapped_number(tensor):
            made.append(tensor)
            continue
        if tensor.is_conj() or tensor.is_neg():
            raise UnsupportedError("lazy conjugation or negation")
        dim, storage = tensor.dim(), tensor.untyped_storage()._cdata
        layout = list(numbers[start : start + 2 * dim])
        if len(memory[storage]) == 1:
            fake = torch.empty_strided(layout[:dim], layout[dim:], dtype=tensor.dtype, device=tensor.device)
        else:
            is_first = storage not in first
            if is_first:
                first[storage] = torch.empty(sum(memory[storage]), dtype=tensor.dtype, device=tensor.device)
            if tensor.dtype != first[storage].dtype:
                raise UnsupportedError("saved tensors that share memory under two dtypes")
            offset = (0 if is_first else numbers[start + 2 * dim]) - lowest[storage]
            fake = first[storage].as_strided(layout[:dim], layout[dim:], offset)
        made.append(fake)
    return made


def _lowest_offsets(walk: Any, numbers: Numbers) -> dict[int, Any]:
    """Where, on each storage, the tensor that begins first does so, counted from the tensor that was walked first."""
    lowest: dict[int, tuple[int, Any]] = {}
    for tensor, start in zip(walk.tensors, walk.tensor_numbers, strict=True):
        storage, position = tensor.untyped_storage()._cdata, start + 2 * tensor.dim()
        if storage not in lowest:
            lowest[storage] = 0, 0
        elif walk.numbers[position] < lowest[storage][0]:
            lowest[storage] = walk.numbers[position], numbers[position]
    return {storage: offset for storage, (_, offset) in lowest.items()}


def _memory(walk: Any, numbers: Numbers) -> dict[int, list[Any]]:
    """How much each tensor on a storage spans, by storage."""
    spans: dict[int, list[Any]] = {}
    for tensor, start in zip(walk.tensors, walk.tensor_numbers, strict=True):
        dim, known = tensor.dim(), spans.setdefault(tensor.untyped_storage()._cdata, [])
        offset = numbers[start + 2 * dim] if known else 0
        span = -offset if known and walk.numbers[start + 2 * dim] < 0 else offset
        for size, stride in zip(numbers[start : start + dim], numbers[start + dim : start + 2 * dim], strict=True):
            span = span + size * stride
        known.append(span + 1)
    return spans


def _results(walk: Any, boundary: Boundary, numbers: Numbers) -> tuple[list[torch.Tensor | None], list[Any]]:
    """Fakes for what a boundary returns, and its description. Sizes are what the receiving nodes want."""
    outputs: list[torch.Tensor | None] = []
    described: list[Any] = []
    targets = walk.target_numbers(boundary.node)
    for (head, seen), dtype, start in zip(boundary.metadata, boundary.dtypes, targets, strict=True):
        if dtype is None:
            outputs.append(None)
            described.append((head, []))
            continue
        dim = len(seen) // 2
        if start < 0 or len(seen) != 2 * dim or not all(isinstance(n, int) for n in seen):
            raise UnsupportedError("result of a live node whose sizes are not known")
        shape = list(numbers[start : start + dim])
        stride = _same_order(seen[:dim], seen[dim:], shape)
        outputs.append(torch.empty_strided(shape, stride, dtype=dtype))
        described.append((head, [*shape, *stride]))
    return outputs, described


def _same_order(shape: Values, stride: Values, new_shape: Numbers) -> list[Any]:
    """Strides for the new sizes: dimensions in the same order in memory, expanded ones still expanded."""
    new: list[Any] = [0] * len(shape)
    extent, new_extent = 1, 1
    for dim in sorted(range(len(shape)), key=lambda d: (stride[d], -d)):
        if stride[dim] == 0:
            continue
        if stride[dim] != extent and shape[dim] != 1:
            raise UnsupportedError("result of a live node that is not dense")
        new[dim] = new_extent
        extent, new_extent = extent * shape[dim], new_extent * new_shape[dim]
    return new


def _hints(values: Values) -> list[int]:
    """Sizes to trace at: those at hand, but none of 0, 1 or met twice, since formulas treat these in ways of their own."""
    hints: list[int] = []
    for value in values:
        hint = max(value, 2)
        while hint in hints:
            hint += 1
        hints.append(hint)
    return hints


# ---- terms and conditions


def _term(column: tuple[int, ...], symbols: list[tuple[int, ...]]) -> Term | None:
    """coefficient * a symbol, or two, that is right at every point."""
    for count in (1, 2):
        for chosen in itertools.combinations_with_replacement(range(len(symbols)), count):
            products = [_product([symbols[number][point] for number in chosen]) for point in range(len(column))]
            ratio = next((value // product for value, product in zip(column, products) if product), None)
            if ratio and all(ratio * product == value for value, product in zip(column, products)):
                return ratio, chosen
    return None


def _product(values: Values) -> int:
    product = 1
    for value in values:
        product *= value
    return product


def _as_term(number: Any, names: list[sympy.Symbol]) -> Term:
    if isinstance(number, int):
        return number
    coefficient, rest = number.node.expr.as_coeff_Mul()
    symbols: list[int] = []
    for factor in sympy.Mul.make_args(rest):
        base, power = factor.as_base_exp()
        if base not in names or not power.is_Integer or power < 1:
            raise UnsupportedError("result of a live node whose sizes are not a product")
        symbols += [names.index(base)] * int(power)
    return int(coefficient), tuple(symbols)


def _conditions(env: Any, names: list[sympy.Symbol]) -> Callable[[Values], bool]:
    """What tracing relied on, as a function of the symbols' values."""
    exprs = dict.fromkeys(guard.expr for guard in env.guards)
    unknown = {symbol for expr in exprs for symbol in expr.free_symbols} - set(names)
    if unknown:
        raise UnsupportedError("condition on data")
    source = f"lambda {', '.join(map(str, names))}: " + (" and ".join(f"({symbolic(e)})" for e in exprs) or "True")
    function = eval(source, {"torch": torch, "math": __import__("math")})
    return lambda values: bool(function(*values))


# ---- comparison


class _Comparison:
    """Matches a symbolic trace, at given sizes, with another, slot by slot."""

    def __init__(self, general: General, values: Values) -> None:
        self.own = general.trace
        self.used = general.trace.used()
        self.values = dict(zip(map(str, general.names), values, strict=True))
        self.terms = values
        self.match: dict[int, int] = {-1: -1}
        self.taken: set[int] = {-1}

    def is_same(self, other: Trace) -> bool:
        own = self.own
        return (
            self._slots(own.inputs, other.inputs)
            and len(own.instructions) == len(other.instructions)
            and all(self._calls(a, b, other) for a, b in zip(own.instructions, other.instructions))
            and len(own.events) == len(other.events)
            and all(map(self._events, own.events, other.events))
            and self._slots(own.results, other.results)
        )

    def _slots(self, own: Sequence[int], other: Sequence[int]) -> bool:
        return len(own) == len(other) and all(map(self._slot, own, other))

    def _slot(self, own: int, other: int) -> bool:
        if own not in self.match and other not in self.taken:
            self.match[own] = other
            self.taken.add(other)
        return self.match.get(own) == other

    def _calls(self, own: Instruction, other: Instruction, others: Trace) -> bool:
        if own.op is not other.op or own.autocast != other.autocast or len(own.outs) != len(other.outs):
            return False
        mine, its = list(leaves((own.args, own.kwargs))), list(leaves((other.args, other.kwargs)))
        if len(mine) != len(its) or not all(self._arguments(a, b, others) for a, b in zip(mine, its)):
            return False
        return all(self._outputs(a, b, others) for a, b in zip(own.outs, other.outs))

    def _outputs(self, own: int | None, other: int | None, others: Trace) -> bool:
        if own is None or other is None:  # a kernel may leave out what its fake returns, and nobody asked for
            return other is None and (own is None or own not in self.used)
        return self._slot(own, other) and self._shapes(own, other, others)

    def _arguments(self, own: Any, other: Any, others: Trace) -> bool:
        if isinstance(own, Ref) and isinstance(other, Ref):
            mine, its = self.own.constants.get(own.slot), others.constants.get(other.slot)
            if mine is None or its is None:
                return mine is its and self._slot(own.slot, other.slot)
            return mine.dtype == its.dtype and torch.equal(mine, its) and self._slot(own.slot, other.slot)
        value = self._number(own)
        return bool(type(value) is type(other) and (value == other or value != value))

    def _number(self, leaf: Any) -> Any:
        if not isinstance(leaf, Sym):
            return leaf
        return leaf.kind(eval(symbolic(leaf.expr), {"torch": torch, "math": __import__("math")}, dict(self.values)))

    def _shapes(self, own: int, other: int, others: Trace) -> bool:
        mine, its = self.own.slots[own].meta, others.slots[other].meta
        if mine is None or its is None:
            return mine is its
        shape = tuple(map(self._number, mine.shape))
        strides = zip(shape, map(self._number, mine.stride), its.stride)
        has_strides = 0 in shape or all(size == 1 or a == b for size, a, b in strides)
        return bool(mine.dtype == its.dtype and shape == its.shape and has_strides)

    def _events(self, own: Ran | Boundary, other: Ran | Boundary) -> bool:
        if own.node != other.node:
            return False
        if isinstance(own, Ran) and isinstance(other, Ran):
            same = own.is_leaf == other.is_leaf and own.calls == other.calls and (own.grad < 0) == (other.grad < 0)
            return same and self._slot(own.grad, other.grad) and self._slots(own.inputs, other.inputs)
        if not isinstance(own, Boundary) or not isinstance(other, Boundary):
            return False
        return (
            own.position == other.position
            and own.done == other.done
            and self._slots(own.inputs, other.inputs)
            and self._slots(own.outputs, other.outputs)
            and self._slots(own.results, other.results)
            and self._waiting(own.not_ready, other.not_ready)
            and self._waiting(own.ready, other.ready)
            and all(map(self._described, own.metadata, other.metadata))
        )

    def _waiting(self, own: Any, other: Any) -> bool:
        return len(own) == len(other) and all(a[0] == b[0] and self._slots(a[1], b[1]) for a, b in zip(own, other))

    def _described(self, own: Any, other: Any) -> bool:
        numbers = [evaluate(term, self.terms) for term in own[1]]
        return own[0] == other[0] and numbers == [int(number) for number in other[1]]
