"""Differentiate one segment: trace its backward for the state it runs in, or run its tape nodes as they are.

    trace_backward: (Tape, Segment, BackwardKey) -> Backward      a Program, and which saved tensors it takes
    run_nodes:      (Tape, Segment, tangents, saved, needed) -> grads, one per exit

Both hand the segment's tape nodes to torch's own engine and read, behind each node, the gradient that leaves along each
exit; the engine's own sums are not used, since the live engine makes them again in eager's order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from gradc.ambient import Ambient, autocast_set_to
from gradc.analysis.segments import Segment
from gradc.backward import formulas
from gradc.errors import UnsupportedError
from gradc.ir.passes import LAZY_VIEWS, add_in_place, add_up, drop_dead, is_odd, is_view_op, refuse_phantoms
from gradc.ir.program import Program, Ref, Sym, TensorMeta
from gradc.ir.recorder import Recorder
from gradc.tape.ctx_state import is_python, watching
from gradc.tape.fakes import strided
from gradc.tape.tape import Edge, Node, Tape
from gradc.torch_private import current_autograd_node, engine_grad, is_fake

Grads = list[torch.Tensor | None]

# Nodes whose C++ formula takes another path for tensors that are "like a subclass", as fake tensors are, with other last
# bits, strides or signs: they are run on the real tensors. Found by the op_db sweep and by reading the formulas.
_ASKS_FOR_SUBCLASS = frozenset(
    {
        "MaskedSelectBackward0",
        "LinalgEigBackward0",  # raises for a loss that depends on the phase of eigenvectors, but not on fake tensors
    }
)

# Under create_graph those, and some of which only what is recorded is another: other strides and last bits at second order.
_ASKS_UNDER_CREATE_GRAPH = _ASKS_FOR_SUBCLASS | {
    "LinalgDetBackward0",
    "LinalgEighBackward0",
    "LinalgHouseholderProductBackward0",
    "OrmqrBackward0",
    "ProdBackward0",
    "ProdBackward1",
    "CumprodBackward0",
}


@dataclasses.dataclass(frozen=True)
class BackwardKey:
    """Everything that can change what a segment's backward does, besides the values of tensors.

    Attributes:
        ambient: autocast and the global modes in which it runs.
        tangents: layout of each incoming gradient; None for one that is not defined.
        needed: for each exit, whether its gradient is wanted.
        adds_up: the first of the exits to one primal brings the sum of their gradients, in the engine's order.
        owned: positions of gradients that the engine would write a sum over, where it tells: nobody else holds them.
    """

    ambient: Ambient
    tangents: tuple[TensorMeta | None, ...]
    needed: tuple[bool, ...]
    adds_up: bool = False
    owned: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Backward:
    """A segment's backward for one key.

    ``program``: (defined tangents, saved tensors, symbols) -> one gradient or None per exit.
    ``saved`` are positions in ``Segment.saved``. ``released`` are those that a backward without retain_graph frees: all that
    the nodes own which eager would run; ``frees_hidden`` tells that one of these nodes saved what no hook sees. ``views`` are
    gradients that the engine must see as views, as in eager: to any other it adds in place, in the memory that it lies in.
    """

    program: Program
    saved: tuple[int, ...]
    released: tuple[int, ...]
    frees_hidden: bool
    views: tuple[int, ...]


def trace_backward(tape: Tape, segment: Segment, key: BackwardKey, name: str) -> Backward:
    """Trace the backward of ``segment`` on fake tensors under the state that ``key`` names.

    Raises:
        UnsupportedError: if a node does what cannot be traced; the caller then runs the nodes as they are.
    """
    refuse_other_formulas(tape, segment, create_graph=False)
    used: list[int] = []
    number_of = {index: number for number, index in enumerate(segment.saved)}
    with tape.lock, autocast_set_to(key.ambient.autocast), tape.fake_mode, torch.no_grad():
        recorder = Recorder(name, place=lambda: _place(tape))
        recorder.lift = functools.partial(lift, recorder)
        tangents = [None if meta is None else fake_tangent(tape, meta) for meta in key.tangents]
        for position, tangent in enumerate(tangents):
            if tangent is not None:
                slot = recorder.add_input(tangent, "tangent", entry_label(tape, segment, position))
                if position in key.owned:
                    recorder.owned.add(slot)
        placeholders = {index: tape.saved[index].fake.detach() for index in segment.saved if index not in segment.kept}
        num_tangents = len(recorder.inputs)
        for index in sorted(segment.kept):
            used.append(number_of[index])
            recorder.add_input(tape.saved[index].fake, saved_name(tape, index), "kept")

        def unpack(index: int) -> torch.Tensor:
            placeholder = placeholders.get(index)
            if placeholder is None:
                return tape.saved[index].fake  # a node beyond the exits, which the engine visits for nothing
            if recorder.slot_of(placeholder) is None:
                used.append(number_of[index])
                recorder.add_input(placeholder, saved_name(tape, index), "saved")
            return placeholder

        with watching(tape, segment.nodes), recorder, tape.unpacking(unpack):
            grads = run_nodes(tape, segment, tangents, key.needed, recorder=recorder)
        for symbol in tape.recorder.symbols:
            slot = recorder.add_input(0, str(symbol), "size")
            recorder.symbols[symbol] = ("int", recorder.inputs.index(slot), 0)
        program = recorder.program(grads)
    assert num_tangents + len(used) + len(tape.recorder.symbols) == len(program.inputs)
    program = refuse_phantoms(drop_dead(program, is_backward=True))
    if key.adds_up:
        program = add_up(program, segment.shared)
    program = add_in_place(program)
    return Backward(program, tuple(used), *_released(segment, key), _telling_views(program))


def refuse_other_formulas(tape: Tape, segment: Segment, create_graph: bool) -> None:
    """Raise UnsupportedError for a node that does on fake tensors what it does not do on real ones."""
    names = _ASKS_UNDER_CREATE_GRAPH if create_graph else _ASKS_FOR_SUBCLASS
    for node in segment.nodes:
        op = tape.op_of(node)
        is_hidden = op is not node and formulas.formula_of(op, create_graph) is not None  # no hook gets there
        if is_hidden or op.name() in names or (op.name() == "LinalgEighBackward0" and _is_complex(op)):
            raise UnsupportedError("formula that differs on fake tensors", op.name(), tape.line_of(node))


def _is_complex(node: Node) -> bool:
    return any(meta is not None and meta.dtype.is_complex for meta in node._input_metadata)


def run_nodes(
    tape: Tape,
    segment: Segment,
    tangents: Sequence[torch.Tensor | None],
    needed: Sequence[bool],
    create_graph: bool = False,
    recorder: Recorder | None = None,
) -> Grads:
    """Run the tape nodes of ``segment`` in torch's engine; the gradient that leaves along each needed exit, or None.

    Works on whatever tensors the tangents and the unpacked saved tensors are. The tape is left as it was. If there are tangents
    beyond the entries, they are what the targets have got so far, one for each: the first exit to a target then brings the sum.
    ``recorder`` is given where the tensors are fake and it listens: then nodes run by formulas.FORMULAS where these are known.
    """
    found: dict[tuple[Node, int], torch.Tensor | None] = {}
    targets: dict[Edge, None] = {}
    for exit_, is_needed in zip(segment.exits, needed, strict=True):
        if is_needed:
            targets[exit_.source.next_functions[exit_.position]] = None
    is_joined = len(tangents) > len(segment.entries)
    inlets = segment.inlets(len(tangents))
    starts = [(edge, tangent) for edge, tangent in zip(inlets, tangents, strict=False) if tangent is not None]
    silent = _unreached_entries(tape, segment, tangents)
    if not targets or not (starts or silent):
        return [None] * len(segment.exits)

    def read(node: Node) -> Callable[..., None]:
        def hook(grad_inputs: Any, grad_outputs: Any) -> None:
            for position, grad in enumerate(grad_inputs):
                found[node, position] = grad

        return hook

    with contextlib.ExitStack() as stack:
        if recorder is not None:
            stack.enter_context(formulas.replacing(tape, recorder, segment.nodes, create_graph))
            if not create_graph:
                stack.enter_context(_telling_sums(recorder, segment.nodes))
        for source in {exit_.source for exit_ in segment.exits}:
            stack.callback(source.register_hook(read(source)).remove)
        inside = set(segment.nodes)
        for node in {node for node, _ in targets if node not in inside and not _is_leaf(node)} | {e[0] for e, _ in silent}:
            stack.callback(node.register_prehook(_undefine).remove)
        for node in segment.python_behind if tape.has_custom_ops else ():
            stack.enter_context(_silenced(node))
        begun = (*starts, *silent)
        sums = engine_grad([edge for edge, _ in begun], list(targets), [tangent for _, tangent in begun], create_graph)
    if is_joined:
        first = {segment.targets[edge][0]: total for edge, total in zip(targets, sums, strict=True)}
        return [first.get(position) for position in range(len(segment.exits))]
    return [
        found.get((exit_.source, exit_.position)) if is_needed else None
        for exit_, is_needed in zip(segment.exits, needed, strict=True)
    ]


@contextlib.contextmanager
def _telling_sums(recorder: Recorder, nodes: Iterable[Node]) -> Iterator[None]:
    """While inside, ``recorder`` knows what the engine does between ``nodes``: it adds up what they made."""

    def begin(grads: Any) -> None:
        recorder.adds_up = False

    def end(made: Any, grads: Any) -> None:
        recorder.adds_up = True

    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.callback(node.register_prehook(begin).remove)
            stack.callback(node.register_hook(end).remove)
        yield
        recorder.adds_up = False


def _released(segment: Segment, key: BackwardKey) -> tuple[tuple[int, ...], bool]:
    """What the nodes that run for ``key`` own: those between a defined tangent and a needed exit."""
    inside = set(segment.nodes)
    reached = {edge[0] for edge, tangent in zip(segment.entries, key.tangents, strict=True) if tangent is not None}
    for node in segment.nodes:
        if node in reached:
            reached.update(target for target, _ in node.next_functions if target in inside)
    wanted = {exit_.source for exit_, is_needed in zip(segment.exits, key.needed, strict=True) if is_needed}
    for node in reversed(segment.nodes):
        if any(target in wanted for target, _ in node.next_functions):
            wanted.add(node)
    run = [segment.saves[node] for node in segment.nodes if node in reached and node in wanted]
    number_of = {index: number for number, index in enumerate(segment.saved)}
    positions = {number_of[index] for saves in run for index in saves.indices if index not in segment.kept}
    return tuple(sorted(positions)), any(saves.has_hidden for saves in run)


def _telling_views(program: Program) -> tuple[int, ...]:
    """Outputs that are views and do not lie in memory as a fresh tensor: parts, lazy conjugates, or with odd strides."""
    is_whole: dict[int, bool] = {}
    inputs = set(program.inputs)
    for call in program.instructions:
        if is_view_op(call.op):
            base = call.reads[0]
            for out in (out for out in call.outs if out is not None):
                size, size_of_base = (_numel(program.slots[slot].meta) for slot in (out, base))
                is_part = size != size_of_base or call.op in LAZY_VIEWS
                is_whole[out] = not is_part and base not in inputs and is_whole.get(base, True)
    return tuple(
        position
        for position, out in enumerate(program.outputs)
        if isinstance(out, Ref) and out.slot in is_whole and (not is_whole[out.slot] or is_odd(program.slots[out.slot].meta))
    )


def _numel(meta: TensorMeta | None) -> Any:
    if meta is None:
        return None
    return math.prod(size.expr if isinstance(size, Sym) else size for size in meta.shape)


def entry_label(tape: Tape, segment: Segment, position: int) -> str:
    node, _ = segment.entries[position]
    return f"gradient into {node.name()}" + (f" at {line}" if (line := tape.line_of(node)) else "")


def saved_name(tape: Tape, index: int) -> str:
    return tape.recorder.slots[tape.saved[index].slot].name


def _undefine(grad_outputs: Any) -> tuple[None, ...]:
    """A pre-hook: the node gets no gradient, so it and what lies behind it do nothing."""
    return (None,) * len(grad_outputs)


@contextlib.contextmanager
def _silenced(node: Node) -> Iterator[None]:
    """The node of a custom op sends nothing on. Visited for nothing, it would turn undefined gradients into zeros."""
    node.apply = lambda *_: (None,) * len(node.needs_input_grad)
    try:
        yield
    finally:
        del node.apply


def _is_leaf(node: Node) -> bool:
    return type(node).__name__ == "AccumulateGrad"


def _unreached_entries(
    tape: Tape, segment: Segment, tangents: Sequence[torch.Tensor | None]
) -> list[tuple[Any, torch.Tensor]]:
    """Entries whose nodes eager runs on undefined gradients alone, with a stand-in gradient that a pre-hook removes.

    Matters only for a Python autograd.Function, which may turn an undefined gradient into zeros.
    """
    if not any(map(is_python, segment.nodes)):
        return []
    inside = set(segment.nodes)
    reached: set[Node] = set()
    stack = [edge[0] for edge, tangent in zip(segment.entries, tangents, strict=False) if tangent is not None]
    while stack:
        node = stack.pop()
        if node not in reached and node in inside:
            reached.add(node)
            stack += [target for target, _ in node.next_functions]
    silent = []
    for position, edge in enumerate(segment.entries[: segment.num_tangents]):
        if edge[0] not in reached and tangents[position] is None:
            meta = edge[0]._input_metadata[edge[1]]
            silent.append((edge, torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device)))
    return silent


def fake_tangent(tape: Tape, meta: TensorMeta) -> torch.Tensor:
    """A fake tensor with the layout ``meta``. Called inside the tape's fake mode."""
    size, stride = ([tape.symbolic(value) for value in values] for values in (meta.shape, meta.stride))
    return strided(size, stride, meta.dtype, meta.device, meta.is_conj, meta.is_neg)


def lift(recorder: Recorder, tensor: torch.Tensor) -> int:
    """A tensor that came neither in nor out of a recorded call: a constant, or what only nodes beyond the exits read."""
    return recorder.add_phantom(tensor) if is_fake(tensor) else recorder.add_constant(tensor)


def _place(tape: Tape) -> tuple[str, str]:
    node = current_autograd_node()
    return (tape.line_of(node), node.name()) if node is not None else ("", "")
