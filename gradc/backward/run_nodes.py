"""Run the tape nodes of a segment in torch's engine, on whatever tensors they are given: fake ones to trace, real ones live.

    run_nodes: (Tape, Segment, tangents, needed) -> one gradient or None per exit

The gradients are read off the exits, one by one; the engine's own sums are not used, since the live engine makes them again in
eager's order.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from gradc.analysis.segments import Segment
from gradc.backward import formulas
from gradc.backward.written_results import count_as_eager, versions_in_eager
from gradc.ir.recorder import Recorder
from gradc.tape.ctx_state import is_python
from gradc.tape.node_facts import LEAVES
from gradc.tape.plain_tensors import PlainTensorCalls
from gradc.tape.tape import Edge, Node, Tape
from gradc.torch_private.autograd import engine_grad, input_metadata

Grads = list[torch.Tensor | None]


def run_nodes(
    tape: Tape,
    segment: Segment,
    tangents: Sequence[torch.Tensor | None],
    needed: Sequence[bool],
    create_graph: bool = False,
    recorder: Recorder | None = None,
    stealable: Sequence[int] = (),
) -> Grads:
    """Run the tape nodes of ``segment`` in torch's engine; the gradient that leaves along each needed exit, or None.

    Works on whatever tensors the tangents and the unpacked saved tensors are. The tape is left as it was. If there are tangents
    beyond the entries, they are what the targets have got so far, one for each: the first exit to a target then brings the sum.
    ``recorder`` is given where the tensors are fake and it listens: then nodes run by formulas.FORMULAS where these are known.
    ``stealable``: of real tangents, as in ``BackwardCall``.
    """
    wanted = [exit_ for exit_, is_needed in zip(segment.exits, needed, strict=True) if is_needed]
    targets = list(dict.fromkeys(exit_.source.next_functions[exit_.position] for exit_ in wanted))
    inlets = segment.inlets(len(tangents))
    silent = _unreached_entries(segment, tangents)
    starts = [(edge, tangent) for edge, tangent in zip(inlets, tangents, strict=False) if tangent is not None] + silent
    if not targets or not starts:
        return [None] * len(segment.exits)
    found: dict[tuple[Node, int], torch.Tensor | None] = {}
    with contextlib.ExitStack() as stack:
        if recorder is not None:
            stack.enter_context(formulas.replacing(tape, recorder, segment.nodes, create_graph))
            stack.enter_context(PlainTensorCalls() if tape.has_custom_ops else contextlib.nullcontext())
        if recorder is not None and not create_graph:
            stack.enter_context(telling_sums(recorder, segment.nodes))
        stack.enter_context(_writing_over([(inlets[position], tangents[position]) for position in stealable]))
        stack.enter_context(_reading(segment, found))
        stack.enter_context(_staying_inside(tape, segment, targets, [edge for edge, _ in silent]))
        sums = engine_grad([edge for edge, _ in starts], targets, [tangent for _, tangent in starts], create_graph)
    if len(tangents) > len(segment.entries):
        first = {segment.targets[edge][0]: total for edge, total in zip(targets, sums, strict=True)}
        return [first.get(position) for position in range(len(segment.exits))]
    return [
        found.get((exit_.source, exit_.position)) if is_needed else None
        for exit_, is_needed in zip(segment.exits, needed, strict=True)
    ]


@contextlib.contextmanager
def _writing_over(starts: Iterable[tuple[Edge, Any]]) -> Iterator[None]:
    """While inside, sums lie where these tangents do, as the live engine writes them; here it sees that others hold them."""

    def write(position: int, tangent: torch.Tensor) -> Callable[..., Any]:
        def hook(grads: Any) -> Any:
            total = grads[position]
            if total is None or total.shape != tangent.shape or total.dtype != tangent.dtype:
                return None
            return (*grads[:position], tangent.copy_(total), *grads[position + 1 :])

        return hook

    with contextlib.ExitStack() as stack:
        for (node, position), tangent in starts:
            stack.callback(node.register_prehook(write(position, tangent)).remove)
        yield


@contextlib.contextmanager
def _reading(segment: Segment, found: dict[tuple[Node, int], torch.Tensor | None]) -> Iterator[None]:
    """While inside, what the nodes before the exits send along each of their edges is put into ``found``."""

    def read(node: Node) -> Callable[..., None]:
        def hook(grad_inputs: Any, grad_outputs: Any) -> None:
            for position, grad in enumerate(grad_inputs):
                found[node, position] = grad

        return hook

    with contextlib.ExitStack() as stack:
        for source in {exit_.source for exit_ in segment.exits}:
            stack.callback(source.register_hook(read(source)).remove)
        yield


@contextlib.contextmanager
def _staying_inside(tape: Tape, segment: Segment, targets: list[Edge], silent: list[Edge]) -> Iterator[None]:
    """While inside, nodes beyond the exits do nothing, though the engine visits them, and those of ``silent`` get nothing.

    It visits those on a way to a target, as to a weight that is used before, too. That of attention makes gradients of nothing.
    """
    inside = set(segment.nodes)
    beyond = _leading_to({node for node, _ in targets}, {node for node, _ in targets if node not in inside})
    with contextlib.ExitStack() as stack:
        for node in beyond | {node for node, _ in silent}:
            stack.callback(node.register_prehook(_undefine).remove)
        for node in segment.python_behind if tape.has_custom_ops else ():
            stack.enter_context(_silenced(node))
        yield


def _leading_to(targets: set[Node], starts: set[Node]) -> set[Node]:
    """The nodes that are ``starts``, or behind them, and before a target; no leaves."""
    behind: dict[Node, list[Node]] = {}
    waiting = [*starts]
    while waiting:
        node = waiting.pop()
        for following, _ in node.next_functions if node not in LEAVES else ():
            if following is not None:
                waiting += [] if following in behind else [following]
                behind.setdefault(following, []).append(node)
    leading, waiting = set[Node](), [*targets]
    while waiting:
        for node in behind.get(waiting.pop(), ()):
            if node not in leading:
                leading.add(node)
                waiting.append(node)
    return leading | {node for node in starts if node not in LEAVES}


@contextlib.contextmanager
def telling_sums(recorder: Recorder, nodes: Iterable[Node]) -> Iterator[None]:
    """While inside, ``recorder`` knows what the engine does between ``nodes``: it adds up what they made. Counts as eager."""

    def begin(grads: Any) -> None:
        recorder.sums.is_adding = False

    def end(node: Node, made: Any, grads: Any) -> None:
        recorder.sums.is_adding = True
        count_as_eager(made, versions_in_eager(node))

    with contextlib.ExitStack() as stack:
        stack.callback(begin, ())
        for node in nodes:
            stack.callback(node.register_prehook(begin).remove)
            stack.callback(node.register_hook(functools.partial(end, node)).remove)
        yield


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


def _unreached_entries(segment: Segment, tangents: Sequence[torch.Tensor | None]) -> list[tuple[Edge, torch.Tensor]]:
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
            meta = input_metadata(*edge)
            silent.append((edge, torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device)))
    return silent
