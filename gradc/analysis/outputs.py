"""What a region does besides computing values: which of its outputs are inputs, or views of others.

    analyse_outputs: (Hoisted, Facts) -> Outputs

An output that is a view of an input, or of a tensor that another output shows too, is made again by the same view ops on the
live tensor, so that it is a view there as well, with eager's own view node as its ``grad_fn``. See Note [Outputs that alias].
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch

from gradc import native
from gradc.analysis.facts import Facts
from gradc.analysis.hoist import Hoisted
from gradc.analysis.segments import Segment
from gradc.analysis.views_of_arguments import refuse_history_of_its_own
from gradc.errors import UnsupportedError
from gradc.ir.ops import LAZY_VIEWS, NOT_STRIDED
from gradc.ir.values import Sym
from gradc.tape.tape import Edge, Node, Tape, edge_of
from gradc.tape.views import Resolve, Step, ViewsAgain, ViewStep, is_recorded
from gradc.torch_private.autograd import is_view, sequence_nr

_aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Constant:
    """An output that is no tensor: a number, None, or a size."""

    value: object


@dataclasses.dataclass(frozen=True)
class InputItself:
    """An output that is an input, the same object."""

    primal: int


@dataclasses.dataclass(frozen=True)
class Value:
    """An output that the forward Program returns at ``position``."""

    position: int


@dataclasses.dataclass(frozen=True)
class _Alias:
    """An output made from another tensor of the call by view ops."""

    steps: tuple[Step, ...]

    def make(self, tensor: torch.Tensor, resolve: Resolve = lambda value: value) -> torch.Tensor:
        """The output, made from ``base`` as it is in a call."""
        for step in self.steps:
            tensor = step(tensor, resolve)
        return tensor


@dataclasses.dataclass(frozen=True)
class AliasOfInput(_Alias):
    """An output made from an input by view ops."""

    base: InputItself


@dataclasses.dataclass(frozen=True)
class AliasOfIntermediate(_Alias):
    """An output made from a value by view ops, which may be an output itself."""

    base: Value
    requires_grad: bool


@dataclasses.dataclass(frozen=True)
class AliasUsedInside:
    """An output that is a view of ``base``, which the user does not see, and that the region uses itself.

    Its gradients from inside and outside meet in the segments, like those of a value, but when it is written into: then what
    comes from outside goes past it, to ``base``.
    """

    base: Value
    value: Value


Output = Constant | InputItself | Value | AliasOfInput | AliasOfIntermediate | AliasUsedInside


@dataclasses.dataclass(frozen=True, eq=False)
class Outputs:
    """How the outputs of a region are made.

    Attributes:
        kinds: one for each output; one object returned twice is one kind.
        values: the fake tensors that the forward Program must return, each with its tape edge if it is differentiable.
        nodes_of_views: number of each output that is made of a value as a view -> the nodes of the views on the way, the
            output's first.
    """

    kinds: tuple[Output, ...]
    values: tuple[tuple[torch.Tensor, Edge | None], ...]
    nodes_of_views: Mapping[int, tuple[Node, ...]]

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The tape edges of the values that are differentiable."""
        return tuple(edge for _, edge in self.values if edge is not None)

    @property
    def made_between(self) -> tuple[Node, ...]:
        """The nodes of all those views: they stand in the live graph by themselves."""
        return tuple(node for nodes in self.nodes_of_views.values() for node in nodes)


def analyse_outputs(hoisted: Hoisted, facts: Facts) -> Outputs:
    """See the module's docstring.

    Raises:
        UnsupportedError: for an output whose views cannot be made again.
    """
    return _Analysis(hoisted, facts).run()


def refuse_views_used_inside(tape: Tape, outputs: Outputs, segments: Sequence[Segment]) -> None:
    """A view of an intermediate is made again behind the segments; gradients from inside would not meet there.

    Nor would those that second order sends to the view as the saved result of an op in place on it. Views that one op makes, as
    ``split``, have one node.
    """
    inner = {node for segment in segments for user in segment.nodes for node, _ in user.next_functions}
    inner |= {saved.edge[0] for saved in tape.saved if saved.edge is not None}
    for out, kind in zip(tape.outputs, outputs.kinds, strict=True):
        if isinstance(kind, AliasOfIntermediate) and kind.requires_grad and edge_of(out)[0] in inner:
            raise UnsupportedError("view of an intermediate that is returned and used inside")


class _Analysis:
    def __init__(self, hoisted: Hoisted, facts: Facts) -> None:
        self.tape, self.facts, self.views, self.again = facts.tape, facts, facts.views, ViewsAgain(facts.tape)
        self.values: list[tuple[torch.Tensor, Edge | None]] = []
        self.position_of: dict[int, int] = {}
        self.primal_of = {id(primal.fake): i for i, primal in enumerate(hoisted.primals) if primal.fake is not None}
        self.shown = _times_shown(self.tape)

    def run(self) -> Outputs:
        made: dict[int, Output] = {}
        for out in self.tape.outputs:
            if id(out) not in made:
                made[id(out)] = self.output(out)
        self.refuse_disorder(made)
        kinds = tuple(made[id(out)] for out in self.tape.outputs)
        return Outputs(kinds, tuple(self.values), dict(self.nodes_of_views(kinds)))

    def output(self, out: object) -> Output:
        if isinstance(out, torch.SymInt):
            return Constant(Sym(out.node.expr) if not out.node.expr.is_number else int(out.node.expr))
        if not isinstance(out, torch.Tensor):
            if isinstance(out, (torch.SymFloat, torch.SymBool)):
                raise UnsupportedError("symbolic output that is no size", repr(out))
            return Constant(out)
        if id(out) in self.primal_of:
            return InputItself(self.primal_of[id(out)])
        if out.is_inference() and not torch.is_inference_mode_enabled():
            raise UnsupportedError("output made in inference mode inside")
        return self.view(out) or self.value(out)

    def refuse_disorder(self, made: dict[int, Output]) -> None:
        """Views of an intermediate are made again last, in the order of the outputs; so its gradients add up in that order."""
        chains = collections.defaultdict(list)
        for out in {id(out): out for out in self.tape.outputs}.values():
            kind = made[id(out)]
            if isinstance(kind, AliasOfIntermediate) and kind.requires_grad:
                root, steps = self.views.path_to(out)
                if is_recorded(root):
                    chains[id(root)].append((root, [self.tape.tensor_of(slot) for _, slot in steps]))
        if not chains:
            return
        shown = {id(out) for out in self.tape.outputs}
        uses_of = self.facts.uses_of
        for views in chains.values():
            root = views[0][0]
            between = [edge_of(view) for _, chain in views for view in chain[:-1] if is_recorded(view)]
            nodes = [edge_of(next(view for view in chain if is_recorded(view)))[0] for _, chain in views]
            made_at = [sequence_nr(node) for node in dict.fromkeys(nodes)]
            inside = [sequence_nr(node) for node, _ in uses_of(edge_of(root)) if node not in nodes]
            is_ordered = made_at == sorted(made_at) and max(inside, default=0) < made_at[0]
            num_gradients = len(made_at) + len(inside) + 2 * (id(root) in shown)
            if (num_gradients > 2 and not is_ordered) or any(len(uses_of(edge)) > 1 for edge in between):
                raise UnsupportedError("view of an intermediate that has other uses after it")

    def value(self, out: torch.Tensor) -> Value:
        if out.requires_grad and not is_recorded(out):
            raise UnsupportedError("leaf made inside the region")
        if id(out) not in self.position_of:
            self.position_of[id(out)] = len(self.values)
            self.values.append((out, edge_of(out) if is_recorded(out) else None))
        return Value(self.position_of[id(out)])

    def view(self, out: torch.Tensor) -> AliasOfInput | AliasOfIntermediate | AliasUsedInside | None:
        """How ``out`` becomes a view, as in eager; None if it is none, and for what a derivative gives to the engine."""
        root, steps = self.views.path_to(out)
        if not steps:
            return None
        if id(root) in self.primal_of:
            refuse_history_of_its_own(out, steps)
            return AliasOfInput(self.steps(steps), InputItself(self.primal_of[id(root)]))
        if self.is_shown(out, root, steps) or self.is_last(root, steps):
            base = self.value(root)
            refuse_history_of_its_own(out, steps)
            return AliasOfIntermediate(self.steps(steps), base, is_recorded(out))
        if self.tape.is_derivative or not is_view(out):
            return None
        if not out.requires_grad:
            return self.without_history(root, steps)
        self.refuse_other_than_used(root, steps)
        return AliasUsedInside(self.value(root), self.value(out))

    def without_history(self, root: torch.Tensor, steps: list[ViewStep]) -> AliasOfIntermediate:
        """A view through which no gradient flows: of what it was last detached from, if it was."""
        last = max((i for i, (call, _) in enumerate(steps) if call.op is _aten.detach.default), default=-1)
        base = self.tape.tensor_of(steps[last][1]) if last >= 0 else root
        return AliasOfIntermediate(self.steps(steps[last + 1 :]), self.value(base), requires_grad=False)

    def steps(self, steps: list[ViewStep]) -> tuple[Step, ...]:
        return tuple(map(self.again.step, steps))

    def is_shown(self, out: torch.Tensor, root: torch.Tensor, steps: list[ViewStep]) -> bool:
        """True if the user can tell the view ``out`` of ``root`` from a tensor of its own.

        By another view of the same memory; by in-place use, which some views refuse; or by its flag: a view made under
        no_grad of a tensor that requires a gradient is a leaf that requires one.
        """
        is_leaf = out.requires_grad and not is_recorded(out)
        is_one_of_many = any(instruction.returns_list for instruction, _ in steps)
        return is_leaf or is_one_of_many or self.shown[_family_of(self.tape, root)] > 1

    def is_last(self, root: torch.Tensor, steps: list[ViewStep]) -> bool:
        """True if inside the region nothing uses the view, nor its root but for it: it may as well be a live view.

        The user can tell it from a tensor of its own by a hook, which a view loses when it is modified in place. Not a lazy
        conjugate or negative: the segment's tangents would have the lazy bit, which no Program is made for.
        """
        if any(instruction.op in LAZY_VIEWS for instruction, _ in steps):
            return False
        return self.num_uses(root, steps) == [1] * len(steps) + [0] and not self.is_saved(steps)

    def refuse_other_than_used(self, root: torch.Tensor, steps: list[ViewStep]) -> None:
        """A view that the region uses, or whose root it uses, can be one behind it: if it is a strided part.

        Not if it was written into, but by an op that saved it: then its segment ends where eager's view has its new node.
        """
        is_saved = self.is_saved(steps)
        is_written = not is_saved and any(slot in self.tape.rewritten for _, slot in steps)
        if is_written or any(call.op in NOT_STRIDED for call, _ in steps):
            raise UnsupportedError("view of an intermediate that is no strided part of it, or was written into")
        is_used = is_saved or sum(self.num_uses(root, steps)) > len(steps)
        if not is_used or not native.is_built():
            raise UnsupportedError("view of an intermediate that is returned and used inside")

    def is_saved(self, steps: list[ViewStep]) -> bool:
        """True if the last of the views is what an op in place on it saved: second order sends gradients there."""
        last = self.tape.tensor_of(steps[-1][1])
        return is_recorded(last) and any(saved.edge == edge_of(last) for saved in self.tape.saved)

    def num_uses(self, root: torch.Tensor, steps: list[ViewStep]) -> list[int]:
        """How often the region uses the root, and each view on the way from it; none where gradients go by other ways."""
        chain = [root, *(self.tape.tensor_of(slot) for _, slot in steps)]
        if self.tape.is_derivative or not all(map(is_recorded, chain)):
            return []
        return [len(self.facts.uses_of(edge_of(tensor))) for tensor in chain]

    def nodes_of_views(self, kinds: tuple[Output, ...]) -> Iterator[tuple[int, tuple[Node, ...]]]:
        """See ``Outputs``."""
        first = {id(kind): number for number, kind in reversed(list(enumerate(kinds)))}
        for number, kind in enumerate(kinds):
            if isinstance(kind, AliasOfIntermediate) and kind.requires_grad and first[id(kind)] == number:
                _, steps = self.views.path_to(self.tape.outputs[number])
                if steps[-1][1] not in self.tape.outdated:  # whose node is yet to be made
                    yield number, tuple(edge_of(self.tape.tensor_of(slot))[0] for _, slot in reversed(steps))


def _times_shown(tape: Tape) -> collections.Counter[int | None]:
    """How many of the outputs, which are different tensors, show the memory of each family of slots."""
    outputs = {id(out): out for out in tape.outputs if isinstance(out, torch.Tensor)}
    return collections.Counter(_family_of(tape, out) for out in outputs.values())


def _family_of(tape: Tape, tensor: torch.Tensor) -> int | None:
    slot = tape.slot_of(tensor)
    return None if slot is None else tape.aliases.root_of(slot)
