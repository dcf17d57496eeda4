"""Tensors that the code of a custom op keeps on ``ctx`` by itself, beside what it saves. See Note [The tape].

    kept_by:    (Tape, node) -> numbers of what the node keeps (``Tape.saved``)
    watching:   (Tape, nodes) -> a context in which backward must leave the ``ctx`` of these nodes as it is
    giving_out: (Tape, nodes, number -> tensor) -> a context in which the code of these nodes reads the tensors of a call
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from gradc.errors import UnsupportedError
from gradc.torch_private import is_fake

if TYPE_CHECKING:
    from gradc.tape.tape import Node, Tape


def is_python(node: Node) -> bool:
    """True for the node of an autograd.Function in Python, which on a tape is that of a custom op."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def kept_by(tape: Tape, node: Node) -> list[int]:
    """The numbers of the tensors that ``node`` keeps, ascending."""
    numbers = (_number_of(tape, leaf) for leaf in _leaves_of_state(node) if is_fake(leaf))
    return sorted({number for number in numbers if number is not None})


@contextmanager
def watching(tape: Tape, nodes: Iterable[Node]) -> Iterator[None]:
    """Refuse code of a custom op that changes, while inside, what its ``ctx`` holds: only this run would.

    Raises:
        UnsupportedError: at the end, when the ``ctx`` is as it was before.
    """
    owners = [(node, dict(node.__dict__), _leaves_of_state(node)) for node in nodes if is_python(node)]
    versions = [(saved.fake, saved.fake._version) for saved in tape.saved if saved.is_kept]
    changed = []
    try:
        yield
    finally:
        for node, state, leaves in owners:
            now = _leaves_of_state(node)
            if len(now) != len(leaves) or any(new is not old for new, old in zip(now, leaves, strict=True)):
                changed.append(node)
                node.__dict__.clear()
                node.__dict__.update(state)
    for node in changed:
        raise UnsupportedError("backward that changes its ctx", node.name(), tape.line_of(node))
    if any(fake._version != version for fake, version in versions):
        raise UnsupportedError("backward that writes into what ctx holds")


@contextmanager
def giving_out(tape: Tape, nodes: Iterable[Node], kept: Callable[[int], Any]) -> Iterator[None]:
    """While inside, the code of a custom op that reads its kept tensor number i gets ``kept(i)``."""
    before = [(node, dict(node.__dict__)) for node in nodes if is_python(node)]

    def read(leaf: Any) -> Any:
        number = _number_of(tape, leaf) if is_fake(leaf) else None
        return leaf if number is None else kept(number)

    for node, state in before:
        node.__dict__.update({name: tree_map(read, value) for name, value in state.items()})
    try:
        yield
    finally:
        for node, state in before:
            node.__dict__.clear()
            node.__dict__.update(state)


def _number_of(tape: Tape, tensor: torch.Tensor) -> int | None:
    """The number of a kept tensor; None if a call of the region could not give out the same."""
    if id(tensor) not in tape.kept:
        slot = tape.recorder.slot_of(tensor)
        is_lazy = tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg()
        is_refused = slot is None or is_lazy or tensor.requires_grad or any(out is tensor for out in tape.outputs)
        tape.kept[id(tensor)] = tensor, None if is_refused else tape.keep(tensor)
    return tape.kept[id(tensor)][1]


def _leaves_of_state(node: Node) -> list[Any]:
    """What the user's code put on the ``ctx`` of a node, in tuples, lists and dictionaries too."""
    return tree_leaves(node.__dict__) if is_python(node) else []
