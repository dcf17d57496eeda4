"""The backward of a verified call, watched where gradients enter it and leave it, and run again in eager when it has ended.

    watch: (outputs, inputs, ...) -> None

Hooks that only look stand on the nodes where the call's live graph begins and ends. When a backward pass has gone through, its
gradients are given to eager's graph, in the same ambient state, and what arrives at each input is compared. An output that
others were computed from takes in eager, too, the gradient that it had in the live graph: what came to it from outside of the
call cannot be told from what came from inside.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradc.ambient import unsupported_mode
from gradc.bits import same_bits
from gradc.shadow.copies import cloned
from gradc.shadow.differences import of_tensors, traits
from gradc.shadow.world import UnverifiableError
from gradc.torch_private.autograd import engine_grad, is_graph_kept, sequence_nr
from gradc.torch_private.modes import is_batched
from gradc.torch_private.running_twice import call_when_backward_ends, task_id, will_run

Edge = tuple[Any, int]
_CAST = "ToCopyBackward0"
_LEAF = "AccumulateGrad"
_OF_GRADIENTS = ("class", "dtype", "layout", "shape", "stride")


@dataclasses.dataclass(frozen=True)
class Output:
    """A tensor that came out of the call with a history: its edge in the live graph, and eager's."""

    edge: Edge
    eager: Tensor


@dataclasses.dataclass(frozen=True)
class Input:
    """What a gradient is for: the edge that it leaves the call by, in the live graph and in eager's."""

    name: str
    edge: Edge
    eager: Edge


@dataclasses.dataclass
class _Pass:
    """One backward pass, as far as it has come: gradients by number of output, and those that arrived at each input."""

    is_differentiable: bool
    is_graph_kept: bool
    state: Any
    tangents: dict[int, Tensor] = dataclasses.field(default_factory=dict)
    arrived: dict[int, list[tuple[dict[str, Any], Tensor]]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Shadow:
    """How eager is run again: ``state`` is asked for as a pass begins; ``again`` calls a function in it, without a trace."""

    state: Callable[[], Any]
    again: Callable[[Callable[[], Any], Any], Any]
    tell: Callable[[list[str]], None]
    leave_out: Callable[[str], None]


def watch(outputs: Sequence[Output], inputs: Sequence[Input], first_number: int, shadow: Shadow) -> None:
    """Compare each backward pass through the nodes that were made from ``first_number`` on."""
    inside = _nodes_between([output.edge[0] for output in outputs], first_number)
    inputs = _cut_at_casts(outputs, inputs, inside)
    _Watch(outputs, inputs, inside, shadow)


def _nodes_between(roots: Iterable[Any], first_number: int) -> list[Any]:
    """The nodes that the call made."""
    found: dict[Any, None] = {}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found and node.name() != _LEAF and sequence_nr(node) >= first_number:
            found[node] = None
            waiting += [following for following, _ in node.next_functions]
    return list(found)


def _cut_at_casts(outputs: Sequence[Output], inputs: Sequence[Input], inside: list[Any]) -> list[Input]:
    """Autocast's copies of weights serve other calls, too: what arrives at a copy is compared, not what leaves it."""
    if not any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        return list(inputs)
    live = _casts(inside)
    eager = _casts(_nodes_between([output.eager.grad_fn for output in outputs], 0))
    return [
        dataclasses.replace(given, edge=(live[given.edge[0]], 0), eager=(eager[given.eager[0]], 0))
        if given.edge[0] in live and given.eager[0] in eager
        else given
        for given in inputs
    ]


def _casts(nodes: Iterable[Any]) -> dict[Any, Any]:
    return {node.next_functions[0][0]: node for node in nodes if node.name() == _CAST}


class _Watch:
    """Kept alive by its hooks. ``reason``: why passes from now on cannot be compared."""

    def __init__(self, outputs: Sequence[Output], inputs: Sequence[Input], inside: Sequence[Any], shadow: Shadow) -> None:
        self.outputs, self.inputs, self.shadow, self.reason = list(outputs), inputs, shadow, ""
        self.passes: dict[int, _Pass] = {}
        for node, places in _by_node((output.edge, number) for number, output in enumerate(outputs)).items():
            node.register_prehook(self._begin)
            node.register_hook(functools.partial(self._note_tangents, places))
        self.leads_elsewhere = not self._hear_exits(set(inside))

    def _hear_exits(self, inside: set[Any]) -> bool:
        """Whether every edge that leaves the call leads to an input that is known."""
        numbers = {given.edge: number for number, given in enumerate(self.inputs)}
        casts = {given.edge[0] for given in self.inputs if given.edge[0] in inside}
        are_known = True
        for node in inside - casts:
            edges = [(place, edge) for place, edge in enumerate(node.next_functions) if edge[0] is not None]
            leaving = [(place, edge) for place, edge in edges if edge in numbers or edge[0] not in inside]
            are_known = are_known and all(edge in numbers for _, edge in leaving)
            if places := [(place, numbers[edge]) for place, edge in leaving if edge in numbers]:
                node.register_hook(functools.partial(self._note_arrivals, places))
        return are_known

    def _begin(self, grads: Sequence[Tensor | None]) -> None:
        number = task_id()
        if number == -1 or number in self.passes:
            return
        reason = self.reason or unsupported_mode() or ("batched gradients" if _are_batched(grads) else "")
        if reason:
            self.shadow.leave_out(reason)
            return
        self.passes[number] = _Pass(torch.is_grad_enabled(), is_graph_kept(), self.shadow.state())
        call_when_backward_ends(functools.partial(self._compare, number))

    def _note_tangents(self, places: list[tuple[int, int]], _: Any, grads: Sequence[Tensor | None]) -> None:
        """A post hook: what other hooks made of the gradients, the node has got."""
        if (current := self.passes.get(task_id())) is not None:
            for place, number in places:
                if (grad := grads[place]) is not None:
                    current.tangents[number] = cloned(grad)
            for number, given in enumerate(self.inputs):
                if will_run(given.edge[0]) and not self.leads_elsewhere:
                    current.arrived.setdefault(number, [])

    def _note_arrivals(self, places: list[tuple[int, int]], grads: Sequence[Tensor | None], _: Any) -> None:
        if (current := self.passes.get(task_id())) is not None:
            for place, number in places:
                if (grad := grads[place]) is not None:
                    current.arrived.setdefault(number, []).append((_traits(grad), cloned(grad)))

    def _compare(self, number: int) -> None:
        current = self.passes.pop(number)
        if current.is_differentiable:
            self.reason = "backward of a backward"  # it enters the graph by nodes that are no outputs of the call
        wanted = [place for place, _ in enumerate(self.inputs) if place in current.arrived]
        if not wanted or not current.tangents:
            return
        try:
            grads = self.shadow.again(functools.partial(self._eager_grads, current, wanted), current.state)
        except (RuntimeError, UnverifiableError) as error:
            self.shadow.leave_out(str(error).split("\n")[0][:80])
            return
        texts = [
            _difference(self.inputs[place].name, grad, current.arrived[place], current.is_differentiable)
            for place, grad in zip(wanted, grads)
        ]
        self.shadow.tell([text for text in texts if text])
        if not current.is_graph_kept:
            self.outputs, self.inputs, self.reason = [], [], "backward once more"

    def _eager_grads(self, current: _Pass, wanted: list[int]) -> Sequence[Tensor | None]:
        given = {self.outputs[number].eager: grad for number, grad in current.tangents.items()}
        handles = [tensor.register_hook(lambda _, grad=grad: grad) for tensor, grad in given.items()]
        edges = [(tensor.grad_fn, tensor.output_nr) for tensor in given]
        try:
            targets = [self.inputs[place].eager for place in wanted]
            return engine_grad(edges, targets, list(given.values()), current.is_differentiable)
        finally:
            for handle in handles:
                handle.remove()


def _are_batched(grads: Sequence[Tensor | None]) -> bool:
    return any(grad is not None and is_batched(grad) for grad in grads)


def _by_node(edges: Iterable[tuple[Edge, int]]) -> dict[Any, list[tuple[int, int]]]:
    found: dict[Any, list[tuple[int, int]]] = {}
    for (node, place), number in edges:
        found.setdefault(node, []).append((place, number))
    return found


def _traits(grad: Tensor) -> dict[str, Any]:
    found = traits(grad)
    return {name: found[name] for name in _OF_GRADIENTS if name in found}


def _difference(name: str, eager: Tensor | None, arrived: list[tuple[dict[str, Any], Tensor]], is_differentiable: bool) -> str:
    name = f"gradient of {name}"
    if eager is None or not arrived:
        return "" if eager is None and not arrived else f"{name}: {_presence(arrived)}, in eager {_presence(eager)}"
    theirs = _traits(eager)
    if len(arrived) == 1:
        mine = arrived[0][0]
        if wrong := next((trait for trait, value in theirs.items() if mine.get(trait) != value), None):
            return f"{name}: {wrong} is {mine.get(wrong)}, in eager {theirs[wrong]}"
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        total = functools.reduce(torch.add, [grad for _, grad in arrived])
    if same_bits(eager.detach(), total) or (is_differentiable and same_bits(eager.detach(), arrived[-1][1])):
        return ""  # under create_graph, the last node may hand on the sum with what arrived before
    return f"{name}: {of_tensors(eager.detach().clone(), total)}"


def _presence(grads: Any) -> str:
    return "None" if grads is None or (isinstance(grads, list) and not grads) else "there"
