"""What one autograd node of a tape saved for its backward.

    saved_by: (Tape, node) -> Saves

The node is asked for each of its ``_saved_*`` attributes while the hooks that unpack note the numbers. Guessing
the owner from the order of packing went wrong at third order.
"""

from __future__ import annotations

import dataclasses

import torch

from gradc.tape.ctx_state import numbers_on_ctx
from gradc.tape.tape import Node, Tape


@dataclasses.dataclass(frozen=True)
class Saves:
    """Numbers of the saved tensors that a node owns (``Tape.saved``), and whether it holds others, which no hook sees.

    Such others are the wrappers of numbers.
    """

    indices: tuple[int, ...]
    has_hidden: bool


def saved_by(tape: Tape, node: Node) -> Saves:
    """See the module's docstring. What lies on the ``ctx`` of the node counts, too."""
    found: list[int] = []
    num_others = 0
    owner = tape.op_of(node)
    is_wrapper = owner is not node

    def note(index: int) -> torch.Tensor:
        found.append(index)
        return tape.saved[index].fake

    with tape.unpacking(note), tape.fake_mode:
        for name in _saved_attributes(type(owner)):
            values = getattr(owner, name)
            values = values if isinstance(values, (tuple, list)) else (values,)
            num_others += sum(isinstance(value, torch.Tensor) for value in values)
    has_others = num_others > len(found) or is_wrapper  # once run, it has let go of the op
    return Saves((*found, *numbers_on_ctx(tape, node)), has_others)


_SAVED_ATTRIBUTES: dict[type, tuple[str, ...]] = {}


def _saved_attributes(node_type: type) -> tuple[str, ...]:
    """The attributes through which a node of this type shows what it saved."""
    if node_type not in _SAVED_ATTRIBUTES:
        if issubclass(node_type, torch.autograd.function.BackwardCFunction):
            names: tuple[str, ...] = ("saved_tensors",)
        else:
            names = tuple(name for name in dir(node_type) if name.startswith("_saved_"))
        _SAVED_ATTRIBUTES[node_type] = names
    return _SAVED_ATTRIBUTES[node_type]
