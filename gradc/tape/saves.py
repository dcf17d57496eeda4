"""What one autograd node of a tape saved for its backward.

    saved_by: (Tape, node) -> Saves

A node says of each tensor that it saved what the hook that packed it returned, which is its number on the tape. Guessing the
owner from the order of packing went wrong at third order.
"""

from __future__ import annotations

import dataclasses

from gradc.tape.ctx_state import numbers_on_ctx
from gradc.tape.tape import Node, Tape
from gradc.torch_private.autograd import packed_by


@dataclasses.dataclass(frozen=True)
class Saves:
    """Numbers of the saved tensors that a node owns (``Tape.saved``), and whether it holds others, which no hook sees.

    Such others are the wrappers of numbers.
    """

    indices: tuple[int, ...]
    has_hidden: bool


def saved_by(tape: Tape, node: Node) -> Saves:
    """See the module's docstring. What lies on the ``ctx`` of the node counts, too."""
    owner = tape.op_of(node)
    packed = [(data, hook) for data, hook in packed_by(owner) if data is not None]
    own = tuple(data for data, hook in packed if hook is tape.unpacker.hook)
    has_hidden = len(own) < len(packed) or owner is not node  # once run, a wrapper has let go of the op
    return Saves((*own, *numbers_on_ctx(tape, node)), has_hidden)
