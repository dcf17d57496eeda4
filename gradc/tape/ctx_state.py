"""Tensors that the code of a custom op puts on ``ctx`` by itself, beside what it saves. See Note [The tape].

    with_ctx_tensors: (Tape, nodes) -> the tape on which these tensors have numbers among the saved
    numbers_on_ctx:   (Tape, node) -> the numbers of those that lie on the node's
    watching:         (Tape, nodes) -> a context in which backward must leave the ``ctx`` of these nodes as it is
    giving_out:       (Tape, nodes, number -> tensor) -> a context in which the code of these nodes reads the tensors of a call
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from gradc.errors import UnsupportedError
from gradc.tape.tape import Node, Saved, Tape
from gradc.torch_private.fakes import is_fake


def is_python(node: Node) -> bool:
    """True for the node of an autograd.Function in Python, which on a tape is that of a custom op."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def with_ctx_tensors(tape: Tape, nodes: Iterable[Node]) -> Tape:
    """``tape``, where each tensor on the ``ctx`` of ``nodes`` that a call of the region can give out is counted as saved."""
    found: dict[int, tuple[torch.Tensor, int | None]] = {}
    saved = list(tape.saved)
    outputs = {id(out) for out in tape.outputs}
    for tensor in (leaf for node in nodes for leaf in _leaves_of_state(node) if is_fake(leaf)):
        slot = tape.slot_of(tensor)
        is_lazy = tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg()
        if id(tensor) in found:
            continue
        if slot is None or is_lazy or tensor.requires_grad or id(tensor) in outputs:
            found[id(tensor)] = tensor, None
        else:
            found[id(tensor)] = tensor, len(saved)
            saved.append(Saved(slot, None, tensor, tensor._version, is_on_ctx=True))
    return dataclasses.replace(tape, saved=tuple(saved), ctx_tensors=MappingProxyType(found)) if found else tape


def numbers_on_ctx(tape: Tape, node: Node) -> list[int]:
    """See the module's docstring; ascending."""
    numbers = (_number_of(tape, leaf) for leaf in _leaves_of_state(node))
    return sorted({number for number in numbers if number is not None})


@contextmanager
def watching(tape: Tape, nodes: Iterable[Node]) -> Iterator[None]:
    """Refuse code of a custom op that changes, while inside, what its ``ctx`` holds: only this run would.

    Raises:
        UnsupportedError: at the end, when the ``ctx`` is as it was before.
    """
    owners = [(node, dict(node.__dict__), _leaves_of_state(node)) for node in nodes if is_python(node)]
    versions = [(saved.fake, saved.fake._version) for saved in tape.saved if saved.is_on_ctx]
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
def giving_out(tape: Tape, nodes: Iterable[Node], give: Callable[[int], Any]) -> Iterator[None]:
    """While inside, the code of a custom op that reads tensor number i from its ``ctx`` gets ``give(i)``."""
    before = [(node, dict(node.__dict__)) for node in nodes if is_python(node)]

    def read(leaf: Any) -> Any:
        number = _number_of(tape, leaf)
        return leaf if number is None else give(number)

    for node, state in before:
        node.__dict__.update({name: tree_map(read, value) for name, value in state.items()})
    try:
        yield
    finally:
        for node, state in before:
            node.__dict__.clear()
            node.__dict__.update(state)


def _number_of(tape: Tape, leaf: Any) -> int | None:
    """The number of a tensor on a ``ctx``; None for anything else, or if a call of the region could not give out the same."""
    _, number = tape.ctx_tensors.get(id(leaf), (None, None))
    return number


def _leaves_of_state(node: Node) -> list[Any]:
    """What the user's code put on the ``ctx`` of a node, in tuples, lists and dictionaries too."""
    return tree_leaves(node.__dict__) if is_python(node) else []
