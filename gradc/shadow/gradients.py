"""The backward of a verified call, watched where gradients enter it and leave it, and run again in eager when it has ended.

    watch: (outputs, inputs, ...) -> None

Hooks that only look stand on the nodes where the call's live graph begins and ends. When a backward pass has gone through, its
gradients are given to eager's graph, in the same ambient state, and what arrives at each input is compared. An output that
others were computed from takes in eager, too, the gradient that it had in the live graph: what came to it from outside of the
call cannot be told from what came from inside.

Under create_graph the pass is a call itself: the gradients that it sent are further outputs, eager's copies of them beside, and
those that it was given are further inputs. So the backward of a backward is verified in the same way, at any order.

What is heard belongs to the pass whose number the engine gives in the thread that hears it. Of passes that go through one call
at once, in several threads or one inside another, the first to begin is compared; only it may change what is watched.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradc import native
from gradc.ambient import unsupported_mode
from gradc.bits import same_bits
from gradc.shadow.arrivals import Arrivals, Edge, difference
from gradc.shadow.copies import with_history
from gradc.shadow.live_graph import Input, Output, by_node, cut_at_casts, has_python_nodes, nodes_between
from gradc.shadow.reachable_state import UnverifiableError
from gradc.torch_private.autograd import current_autograd_node, engine_grad, is_graph_kept, next_sequence_nr
from gradc.torch_private.modes import is_batched
from gradc.torch_private.reexecution import call_when_backward_ends, gradient_edge, task_id, will_run

HIGHER = "backward of a backward"


@dataclasses.dataclass
class _Pass:
    """One backward pass, as far as it has come. What torch calls at its end holds this, so that one that fails leaves nothing.

    Attributes:
        first_number: the sequence number of the first node that it can make.
        tangents: gradients by number of output; copies, with histories where the originals have any.
        entered: where a gradient of such an original goes to.
        arrived: what arrived at each input.
        before: of the node that runs, what the engine had for its edges.
        reached, ran: nodes of outputs that the pass comes to, and those of them that it does not end before.
        nested: whether the gradient of an output is made of another's.
        is_compared: False for one that is left out, at whichever output it comes in, and for one that is over.
    """

    is_differentiable: bool
    is_graph_kept: bool
    first_number: int
    state: Any
    tangents: dict[int, Tensor] = dataclasses.field(default_factory=dict)
    entered: dict[int, Edge] = dataclasses.field(default_factory=dict)
    arrived: dict[int, Arrivals] = dataclasses.field(default_factory=dict)
    before: dict[int, Tensor | None] = dataclasses.field(default_factory=dict)
    reached: set[Any] = dataclasses.field(default_factory=set)
    ran: set[Any] = dataclasses.field(default_factory=set)
    nested: bool = False
    is_compared: bool = True


@dataclasses.dataclass(frozen=True)
class Shadow:
    """How eager is run again: ``state`` is asked for as a pass begins; ``again`` calls a function in it, without a trace,
    and is told whether that may read what autograd has not saved."""

    state: Callable[[], Any]
    again: Callable[[Callable[[], Any], Any, bool], Any]
    tell: Callable[[list[str]], None]
    leave_out: Callable[[str], None]


def _nothing_else(shadow: Shadow) -> Shadow:
    """It leaves out, and holds nothing of the call."""
    return Shadow(dict, lambda *_: (), lambda _: None, shadow.leave_out)


def watch(outputs: Sequence[Output], inputs: Sequence[Input], first_number: int, shadow: Shadow) -> None:
    """Compare each backward pass through the nodes that were made from ``first_number`` on."""
    ends = {given.edge for given in inputs}
    inside = nodes_between([output.edge[0] for output in outputs], first_number, ends.__contains__)
    known = cut_at_casts(outputs, inputs, inside)
    for _ in range(len(inputs) - len(known)):
        shadow.leave_out("gradient of a weight that is cast by autocast and otherwise, or before the call")
    _Watch(shadow).add(outputs, known, inside)


class _Watch:
    """Kept alive by its hooks. ``reason``: why passes from now on cannot be compared."""

    def __init__(self, shadow: Shadow) -> None:
        self.outputs: list[Output] = []
        self.inputs: list[Input] = []
        self.shadow, self.reason, self.leads_elsewhere, self.has_python = shadow, "", False, False
        self.passes: weakref.WeakValueDictionary[int, _Pass] = weakref.WeakValueDictionary()
        self.lock = threading.RLock()

    def add(self, outputs: Sequence[Output], inputs: Sequence[Input], nodes: Sequence[Any]) -> None:
        """Watch these nodes, too."""
        first = len(self.outputs)
        self.outputs += outputs
        self.inputs += inputs
        self.has_python = self.has_python or has_python_nodes(output.eager.grad_fn for output in outputs)
        for node, places in by_node((output.edge, first + number) for number, output in enumerate(outputs)).items():
            node.register_prehook(self._begin)
            node.register_hook(functools.partial(self._note_tangents, places))
        self._hear_exits(set(nodes))

    def _hear_exits(self, inside: set[Any]) -> None:
        """Hear what leaves the call for the inputs that are known, and notice if anything leaves for others."""
        numbers = {given.edge: number for number, given in enumerate(self.inputs)}
        casts = {given.edge[0] for given in self.inputs if given.edge[0] in inside}
        for node in inside - casts:
            edges = [(place, edge) for place, edge in enumerate(node.next_functions) if edge[0] is not None]
            leaving = [(place, edge) for place, edge in edges if edge in numbers or edge[0] not in inside]
            self.leads_elsewhere = self.leads_elsewhere or not all(edge in numbers for _, edge in leaving)
            if places := [(place, numbers[edge]) for place, edge in leaving if edge in numbers]:
                node.register_prehook(functools.partial(self._note_sums, places))
                node.register_hook(functools.partial(self._note_arrivals, places))

    def _begin(self, grads: Sequence[Tensor | None]) -> None:
        number = task_id()
        if number == -1 or number in self.passes:
            return
        current = _Pass(torch.is_grad_enabled(), is_graph_kept(), next_sequence_nr(), self.shadow.state())
        with self.lock:
            reason = self._why_left_out(grads)
            current.is_compared = not reason
            self.passes[number] = current
        call_when_backward_ends(functools.partial(self._end, current))
        if reason:
            self._leave_out(reason, current.is_differentiable)

    def _why_left_out(self, grads: Sequence[Tensor | None]) -> str:
        others = [reference() for reference in self.passes.valuerefs()]  # values() is a generator: Dynamo would say so
        if any(other is not None and other.is_compared for other in others):
            return "passes through one graph at once"
        return self.reason or unsupported_mode() or ("batched gradients" if _are_batched(grads) else "")

    def _current(self) -> _Pass | None:
        """The pass that runs in this thread, if it is compared."""
        current = self.passes.get(task_id())
        return current if current is not None and current.is_compared else None

    def _leave_out(self, reason: str, is_differentiable: bool) -> None:
        self.shadow.leave_out(reason)
        if is_differentiable:  # what it made is not watched, and leads into what is
            self.reason = self.reason or f"{HIGHER} that was left out"

    def _note_tangents(self, places: list[tuple[int, int]], _: Any, grads: Sequence[Tensor | None]) -> None:
        """A post hook: what other hooks made of the gradients, the node has got."""
        if (current := self._current()) is not None:
            for place, number in places:
                if (grad := grads[place]) is not None and self.outputs[number].is_entered():
                    edge = gradient_edge(grad) if grad.requires_grad else None
                    twin = next((other for other, entered in current.entered.items() if entered == edge), None)
                    current.tangents[number] = with_history(grad) if twin is None else current.tangents[twin]
                    if edge is not None:
                        current.entered[number] = edge
            current.ran.add(current_autograd_node())
            entered = [output.edge[0] for output in self.outputs if output.is_entered()]
            current.reached.update(node for node in entered if will_run(node))
            for number, given in enumerate(self.inputs):
                if will_run(given.edge[0]) and not self.leads_elsewhere:
                    current.arrived.setdefault(number, Arrivals())

    def _note_sums(self, places: list[tuple[int, int]], _: Sequence[Tensor | None]) -> None:
        if (current := self._current()) is not None and current.is_differentiable:
            node = current_autograd_node()
            if not isinstance(node, torch.autograd.function.BackwardCFunction):  # they take nothing out of the engine's buffers
                current.before = {place: _sum_so_far(node, place) for place, _ in places}

    def _note_arrivals(self, places: list[tuple[int, int]], grads: Sequence[Tensor | None], _: Any) -> None:
        if (current := self._current()) is None:
            return
        before, current.before = current.before, {}
        taken: set[int] = set()
        for place, number in places:
            if (grad := grads[place]) is not None:
                had = before.get(place) if number not in taken else None
                is_taken = had is not None and _sum_so_far(current_autograd_node(), place) is None
                current.arrived.setdefault(number, Arrivals()).add(grad, had, is_taken)
                taken.add(number)

    def _end(self, current: _Pass) -> None:
        if not current.is_compared:
            return
        try:
            self._compare(current)
        finally:
            current.is_compared = False

    def _compare(self, current: _Pass) -> None:
        wanted = [place for place, _ in enumerate(self.inputs) if place in current.arrived]
        if wanted and current.tangents:
            try:
                grads = self.shadow.again(functools.partial(self._eager_grads, current, wanted), current.state, self.has_python)
            except Exception as error:  # of eager's copy: the user's own backward has run
                self._leave_out(_in_words(error), current.is_differentiable)
                return
            arrived = [(self.inputs[place], grad, current.arrived[place]) for place, grad in zip(wanted, grads, strict=True)]
            texts = [difference(given.name, grad, those, current.is_differentiable) for given, grad, those in arrived]
            self.shadow.tell([text for text in texts if text])
            if current.is_differentiable:
                self._go_on(current, arrived)
        elif current.is_differentiable:
            self.reason = self.reason or f"{HIGHER} that came to no input"
        if not current.is_graph_kept:
            self.outputs, self.inputs, self.reason = [], [], "backward once more"
            self.shadow = _nothing_else(self.shadow)  # nodes hold this, and the collector does not see through them

    def _eager_grads(self, current: _Pass, wanted: list[int]) -> Sequence[Tensor | None]:
        if any(arrivals.is_mixed for arrivals in current.arrived.values()):
            raise UnverifiableError("gradients from elsewhere in between")
        given = self._given(current)
        handles = [tensor.register_hook(functools.partial(_replace, current, grad)) for tensor, grad in given]
        seeds = [(self.inputs[place].eager, seed) for place in wanted if (seed := current.arrived[place].seed) is not None]
        starts = [*seeds, *((gradient_edge(tensor), grad) for tensor, grad in given)]
        try:
            targets = [self.inputs[place].eager for place in wanted]
            return engine_grad([edge for edge, _ in starts], targets, [grad for _, grad in starts], current.is_differentiable)
        finally:
            for handle in handles:
                handle.remove()

    def _given(self, current: _Pass) -> list[tuple[Tensor, Tensor]]:
        """Which gradient eager's outputs get. What came to an output in parts, is one in eager, and each part got the same."""
        given: dict[Tensor, Tensor] = {}
        for number, grad in current.tangents.items():
            if not same_bits(given.setdefault(self.outputs[number].eager, grad).detach(), grad.detach()):
                raise UnverifiableError(f"{HIGHER}: parts of a sum got different gradients")
        return list(given.items())

    def _go_on(self, current: _Pass, arrived: Sequence[tuple[Input, Tensor | None, Arrivals]]) -> None:
        """Watch what the pass has made, too."""
        if current.nested or not current.reached <= current.ran:
            self.reason = self.reason or f"{HIGHER}: outputs that lead to one another"
            return
        entered = {edge: current.tangents[number] for number, edge in current.entered.items()}
        entered |= {
            those.seed_edge: those.seed for *_, those in arrived if those.seed is not None and those.seed_edge is not None
        }
        inputs = [Input("a gradient that came in", edge, gradient_edge(copy)) for edge, copy in entered.items()]
        ends = {given.edge for given in [*self.inputs, *inputs]}
        try:
            outputs = _outputs(arrived, ends)
        except UnverifiableError as error:
            self.reason = str(error)
            return
        roots = [output.edge[0] for output in outputs]
        known = set(nodes_between([output.edge[0] for output in self.outputs], 0, ends.__contains__))
        made = nodes_between(roots, current.first_number, lambda edge: edge in ends or edge[0] in known)
        self.add(outputs, inputs, made)


def _outputs(arrived: Sequence[tuple[Input, Tensor | None, Arrivals]], ends: set[Edge]) -> list[Output]:
    """What the pass handed on, and eager's copies: of one that stands for several, an alias for each."""
    eager_of: dict[tuple[Edge, ...], Tensor] = {}
    for _, eager, those in arrived:
        edges = tuple(edge for edge in those.edges if edge not in ends)
        if eager is None or not edges:
            continue
        if len(edges) < len(those.edges) or eager_of.setdefault(edges, eager) is not eager:
            raise UnverifiableError(f"{HIGHER}: a gradient that was handed on as it came")
    shared = collections.Counter(map(id, eager_of.values()))
    return [
        Output(edge, own)
        for edges, eager in eager_of.items()
        for own in [_alias(eager) if eager.is_leaf or shared[id(eager)] > 1 else eager]
        for edge in edges
    ]


def _alias(tensor: Tensor) -> Tensor:
    with torch.enable_grad():
        return torch.ops.aten.alias(tensor)


def _replace(current: _Pass, grad: Tensor, seen: Tensor) -> Tensor:
    """What is given to an output of eager's is what the live one got."""
    if seen is not grad and current.is_differentiable:
        current.nested = True
    return grad


def _in_words(error: Exception) -> str:
    text = str(error).split("\n")[0][:80]
    return text if isinstance(error, RuntimeError | UnverifiableError) else f"{type(error).__name__} in eager's copy: {text}"


def _are_batched(grads: Sequence[Tensor | None]) -> bool:
    return any(grad is not None and is_batched(grad) for grad in grads)


def _sum_so_far(node: Any, position: int) -> Tensor | None:
    """What of a gradient has come to ``node`` and is not handed on yet; only the extension's segments take it over."""
    return native.extension.sum_so_far(node, position) if native.is_built() else None
