"""What a region does besides computing values: which of its outputs are inputs, or views of others.

    analyse_outputs: Tape -> (outputs, values)

``values`` are the fake tensors that the forward Program must return, each with its tape edge if it is differentiable;
``outputs`` say how each output of the region is made of them. An output that is a view of an input, or of a tensor that
another output shows too, is made again by the same view ops on the live tensor, so that it is a view there as well,
with eager's own view node as its ``grad_fn``. See Note [Outputs that alias].
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gradc import native
from gradc.analysis.order import make_detours, uses
from gradc.errors import UnsupportedError
from gradc.ir.passes import LAZY_VIEWS
from gradc.ir.program import Ref, Sym, map_leaves
from gradc.tape.tape import Edge, Node, Primal, Tape, edge_of
from gradc.tape.views import NOT_STRIDED, Views, ViewStep, is_recorded, outdate
from gradc.torch_private import is_made_under_no_grad, sequence_nr

Resolve = Callable[[Any], Any]
Step = Callable[[torch.Tensor, Resolve], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Plain:
    """An output that is no tensor: a number, None, or a size."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Returned:
    """An output that is an input, the same object."""

    primal: int


@dataclasses.dataclass(frozen=True)
class Value:
    """An output that the forward Program returns at ``position``."""

    position: int


@dataclasses.dataclass(frozen=True)
class Derived:
    """An output made from another tensor of the call by view ops."""

    base: Returned | Value
    steps: tuple[Step, ...]
    requires_grad: bool

    def make(self, tensor: torch.Tensor, resolve: Resolve = lambda value: value) -> torch.Tensor:
        """The output, made from ``base`` as it is in a call."""
        for step in self.steps:
            tensor = step(tensor, resolve)
        return tensor


@dataclasses.dataclass(frozen=True)
class Inner:
    """An output that is a view of ``base``, which the user does not see, and that the region uses itself.

    Its gradients from inside and outside meet in the segments, like those of a value, but when it is written into: then what
    comes from outside goes past it, to ``base``.
    """

    base: Value
    value: Value


Output = Plain | Returned | Value | Derived | Inner


def analyse_outputs(tape: Tape) -> tuple[tuple[Output, ...], list[tuple[torch.Tensor, Edge | None]]]:
    """See the module's docstring.

    Raises:
        UnsupportedError: for an output whose views cannot be made again.
    """
    return _Analysis(tape).run()


class _Analysis:
    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.values: list[tuple[torch.Tensor, Edge | None]] = []
        self.position_of: dict[int, int] = {}
        self.primal_of = {id(p.fake): i for i, p in enumerate(tape.primals) if p.fake is not None}
        self.views = Views(tape)
        tensors = {id(out): out for out in tape.outputs if isinstance(out, torch.Tensor)}
        self.shared = _shared_storages(list(tensors.values()))

    def run(self) -> tuple[tuple[Output, ...], list[tuple[torch.Tensor, Edge | None]]]:
        made: dict[int, Output] = {}  # one object returned twice is one output
        for out in self.tape.outputs:
            if id(out) not in made:
                made[id(out)] = self.output(out)
        self.refuse_disorder(made)
        return tuple(made[id(out)] for out in self.tape.outputs), self.values

    def output(self, out: Any) -> Output:
        if isinstance(out, torch.SymInt):
            return Plain(Sym(out.node.expr) if not out.node.expr.is_number else int(out.node.expr))
        if not isinstance(out, torch.Tensor):
            if isinstance(out, (torch.SymFloat, torch.SymBool)):
                raise UnsupportedError("symbolic output that is no size", repr(out))
            return Plain(out)
        if id(out) in self.primal_of:
            return Returned(self.primal_of[id(out)])
        return self.view(out) or self.value(out)

    def refuse_disorder(self, made: dict[int, Output]) -> None:
        """Views of an intermediate are made again last, in the order of the outputs; so its gradients add up in that order."""
        chains = collections.defaultdict(list)
        for out in {id(out): out for out in self.tape.outputs}.values():
            output = made[id(out)]
            if isinstance(output, Derived) and isinstance(output.base, Value) and output.requires_grad:
                root, steps = self.views.path_to(out)
                if is_recorded(root):
                    chains[id(root)].append((root, [self.tape.recorder.tensor_of(slot) for _, slot in steps]))
        if not chains:
            return
        shown = {id(out) for out in self.tape.outputs}
        for views in chains.values():
            root = views[0][0]
            between = [edge_of(view) for _, chain in views for view in chain[:-1] if is_recorded(view)]
            nodes = [edge_of(next(view for view in chain if is_recorded(view)))[0] for _, chain in views]
            made_at = [sequence_nr(node) for node in dict.fromkeys(nodes)]
            inside = [sequence_nr(node) for node, _ in self.uses[edge_of(root)] if node not in nodes]
            is_ordered = made_at == sorted(made_at) and max(inside, default=0) < made_at[0]
            num_gradients = len(made_at) + len(inside) + 2 * (id(root) in shown)
            if (num_gradients > 2 and not is_ordered) or any(len(self.uses[edge]) > 1 for edge in between):
                raise UnsupportedError("view of an intermediate that has other uses after it")

    def value(self, out: torch.Tensor) -> Value:
        if id(out) not in self.position_of:
            self.position_of[id(out)] = len(self.values)
            self.values.append((out, edge_of(out) if is_recorded(out) else None))
        return Value(self.position_of[id(out)])

    def view(self, out: torch.Tensor) -> Derived | Inner | None:
        """How ``out`` becomes a view, as in eager; None if it is none, or if nothing outside can tell that it is one."""
        root, steps = self.views.path_to(out)
        if not steps:
            return None
        if id(root) in self.primal_of:
            base: Returned | Value = Returned(self.primal_of[id(root)])
        elif self.is_shown(out, root, steps) or self.is_last(root, steps):
            base = self.value(root)
        else:
            return Inner(self.value(root), self.value(out)) if self.is_used(root, steps) else None
        _refuse_history_of_its_own(out, steps)
        return Derived(base, tuple(_replay(made, self.tape) for made in steps), is_recorded(out))

    def is_shown(self, out: torch.Tensor, root: torch.Tensor, steps: list[ViewStep]) -> bool:
        """True if the user can tell the view ``out`` of ``root`` from a tensor of its own.

        By another view of the same storage; by in-place use, which some views refuse; or by its flag: a view made under
        no_grad of a tensor that requires a gradient is a leaf that requires one.
        """
        is_leaf = out.requires_grad and not is_recorded(out)
        is_one_of_many = any(instruction.returns_list for instruction, _ in steps)
        return is_leaf or is_one_of_many or root.untyped_storage()._cdata in self.shared

    def is_last(self, root: torch.Tensor, steps: list[ViewStep]) -> bool:
        """True if inside the region nothing uses the view, nor its root but for it: it may as well be a live view.

        The user can tell it from a tensor of its own by a hook, which a view loses when it is modified in place. Not a lazy
        conjugate or negative: the segment's tangents would have the lazy bit, which no Program is made for.
        """
        if any(instruction.op in LAZY_VIEWS for instruction, _ in steps):
            return False
        return self.num_uses(root, steps) == [1] * len(steps) + [0]

    def is_used(self, root: torch.Tensor, steps: list[ViewStep]) -> bool:
        """True if the region uses the view, or what it is a view of: gradients add up otherwise once it is written into."""
        if sum(self.num_uses(root, steps)) <= len(steps):
            return False
        if any(call.op in NOT_STRIDED or slot in self.views.recorder.rewritten for call, slot in steps):
            return False
        if native.extension() is None:
            raise UnsupportedError("view of an intermediate that is returned and used inside")
        return True

    def num_uses(self, root: torch.Tensor, steps: list[ViewStep]) -> list[int]:
        """How often the region uses the root, and each view on the way from it; none where gradients go by other ways."""
        chain = [root, *(self.tape.recorder.tensor_of(slot) for _, slot in steps)]
        if self.tape.is_derivative or not all(map(is_recorded, chain)):
            return []
        return [len(self.uses[edge_of(tensor)]) for tensor in chain]

    @functools.cached_property
    def uses(self) -> dict[Edge, list[tuple[Any, int]]]:
        return uses(self.tape)


def nodes_of_views(tape: Tape, outputs: Sequence[Output]) -> dict[int, list[Node]]:
    """Number of each output that is made of a value as a view -> the nodes of the views on the way, the output's first."""
    views = Views(tape)
    found: dict[int, list[Node]] = {}
    for number, output in enumerate(outputs):
        if any(output is other for other in outputs[:number]):
            continue  # the same object again
        if isinstance(output, Derived) and isinstance(output.base, Value) and output.requires_grad:
            _, steps = views.path_to(tape.outputs[number])
            if steps[-1][1] in tape.outdated:
                continue  # its node is yet to be made
            found[number] = [edge_of(tape.recorder.tensor_of(slot))[0] for _, slot in reversed(steps)]
    return found


def hoist_views(tape: Tape) -> None:
    """Make each output that is a differentiable view of an argument a primal, which the region's call makes first.

    In eager the view is one node: gradients from inside the region and from outside meet there, and go on as one. So are
    the views on the way from the argument to it.
    """
    primal_of = {id(p.fake): i for i, p in enumerate(tape.primals) if p.fake is not None}
    chains = list(_views_of_arguments(tape, primal_of))
    if not chains or _are_last(tape, [[tape.recorder.tensor_of(slot) for _, slot in steps] for _, steps in chains]):
        return make_detours(tape)
    for position, steps in chains:
        for made in steps:
            view = tape.recorder.tensor_of(made[1])
            if id(view) not in primal_of and is_recorded(view):
                _refuse_written_before(tape, made[1], view)
                primal_of[id(view)] = len(tape.primals)
                name = f"view of {tape.primals[position].name}"
                tape.recorder.inputs.append(tape.recorder.new_argument(view, "view", name))
                tape.primals.append(Primal(name, view, edge_of(view), position, _replay(made, tape)))
            position = primal_of[id(view)]
    make_detours(tape)


def _views_of_arguments(tape: Tape, primal_of: dict[int, int]) -> Iterator[tuple[int, list[ViewStep]]]:
    """The outputs that are differentiable views of arguments: the argument's position, and the view calls from it."""
    views = Views(tape)
    for out in {id(out): out for out in tape.outputs if isinstance(out, torch.Tensor)}.values():
        if is_recorded(out) and id(out) not in primal_of:
            root, steps = views.path_to(out)
            position = primal_of.get(id(root))
            if position is not None:
                _refuse_history_of_its_own(out, steps)
                if tape.primals[position].step is None:
                    yield position, steps


def _are_last(tape: Tape, chains: list[list[torch.Tensor]]) -> bool:
    """True if nothing in the region uses these views, and all of it comes before them: they are then made when it is done.

    Not if they are written into: made before the write, as in eager, they get another node when they are next used.
    """
    views = [view for chain in chains for view in chain]
    if not all(map(is_recorded, views)) or any(any(tape.writes_into(view)) for view in views):
        return False
    found = uses(tape)
    numbers = [sequence_nr(edge_of(view)[0]) for chain in chains for view in chain]
    own = {edge_of(view)[0] for chain in chains for view in chain}
    before = max((sequence_nr(node) for users in found.values() for node, _ in users if node not in own), default=-1)
    is_unused = all(len(found[edge_of(view)]) == (view is not chain[-1]) for chain in chains for view in chain)
    return is_unused and before < min(numbers) and numbers == sorted(set(numbers))


def _refuse_history_of_its_own(view: torch.Tensor, steps: list[ViewStep]) -> None:
    """What is detached and then written into with gradient recording has the history of the write, not that of its base."""
    if is_recorded(view) and any(instruction.op is torch.ops.aten.detach.default for instruction, _ in steps):
        raise UnsupportedError("detached tensor modified in place with gradient recording")


def _refuse_written_before(tape: Tape, slot: int, view: torch.Tensor) -> None:
    """A view made before the write that it follows in eager is out of date: torch then makes another history for it."""
    writes = {id(write): write for write in tape.writes_into(view)}
    for instruction in tape.recorder.instructions:
        if slot in instruction.outs:
            return
        if id(instruction) in writes:
            raise UnsupportedError("view of an input that was written into before", where=instruction.where)


def refuse_views_of_returned_views(tape: Tape) -> None:
    """A view of a returned view hangs below it in eager's graph; made again from the base, it would hang beside it."""
    views = Views(tape)
    arguments = {id(primal.fake) for primal in tape.primals}
    returned = {id(out) for out in tape.outputs}
    for out in tape.outputs:
        if not isinstance(out, torch.Tensor) or not is_recorded(out) or id(views.path_to(out)[0]) in arguments:
            continue
        if any(id(base) in returned for base in views.between(out)):
            raise UnsupportedError("view of a view, both returned")


def _shared_storages(tensors: list[torch.Tensor]) -> set[int]:
    """The storages that more than one of the tensors shows."""
    seen: dict[int, int] = {}
    for tensor in tensors:
        key = tensor.untyped_storage()._cdata
        seen[key] = seen.get(key, 0) + 1
    return {key for key, times in seen.items() if times > 1}


def _replay(made: ViewStep, tape: Tape) -> Step:
    """The view call, to be made on another tensor, under its grad mode: what a view may be used for depends on that."""
    instruction, slot = made
    index = instruction.outs.index(slot)
    mode = not is_made_under_no_grad(tape.recorder.tensor_of(slot))
    is_outdated = slot in tape.outdated

    @torch.set_grad_enabled(mode)
    def step(tensor: torch.Tensor, resolve: Resolve) -> torch.Tensor:
        if any(isinstance(leaf, Ref) for leaf in instruction.args[1:]):
            raise UnsupportedError("view op with a tensor argument", str(instruction.op))
        args = map_leaves(resolve, instruction.args[1:])
        result = instruction.op(tensor, *args, **map_leaves(resolve, instruction.kwargs))
        view = result[index] if instruction.returns_list else result
        return outdate(view) if is_outdated else view

    return step
