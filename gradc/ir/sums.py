"""What torch's engine writes over when it adds up gradients: a sum of ours is to lie in memory, and be counted, as one of the
engine's.

    EngineSums.is_written_over: (addend, sum) -> bool             does_layout_tell: (addend, sum) -> bool

Who else holds a gradient decides, as in the engine.
"""

from __future__ import annotations

import dataclasses

import torch

from gradc.ir.metadata import tensor_meta
from gradc.torch_private.autograd import is_view, use_count

_USES = 4  # of a gradient that only one buffer holds, when the engine adds to it; one more, if it was given to the engine


class EngineSums:
    """Tells the additions that the engine makes between nodes from those that nodes make.

    Attributes:
        is_adding: the engine is between two nodes.
        stealable: slots of inputs that it may write a sum over, because nobody else holds them.
        given: slot of an input -> its number, where each run tells whether it may.
        hanging: slot of a sum -> the slot in ``given`` that it is written over, where that may be.
    """

    def __init__(self) -> None:
        self.is_adding = False
        self.stealable: set[int] = set()
        self.given: dict[int, int] = {}
        self.hanging: dict[int, int] = {}
        self._hangs_on: int | None = None  # of the last addition

    def is_written_over(self, addend: torch.Tensor, total: torch.Tensor, slot: int | None, is_input: bool) -> bool:
        """True if the engine would write the sum over ``addend``, as nobody else held it.

        Traced, the recording does, and ``total`` is a new tensor. Whether the addend has gaps or overlaps is not asked.
        """
        is_stealable, self._hangs_on = slot in self.stealable, None
        is_given = is_stealable or slot in self.given
        if torch.is_grad_enabled() or (is_input and not is_given) or tensor_meta(addend) is None:
            return False
        is_alone = use_count(addend) <= _USES + is_given and not is_view(addend)
        is_written_over = is_alone and (is_stealable or not is_input)
        if is_alone and slot is not None:
            self._hangs_on = self.hanging.get(slot) if is_written_over else slot
        return is_written_over

    def note(self, total: int | None) -> None:
        """The slot of the sum that was last asked about."""
        if total is not None and self._hangs_on is not None:
            self.hanging[total] = self._hangs_on


def does_layout_tell(addend: torch.Tensor, total: torch.Tensor) -> bool:
    """True if the sum, written over ``addend``, has other strides than ``total``, which is new."""
    meta, new = tensor_meta(addend), tensor_meta(total)
    return meta is not None and new is not None and meta != dataclasses.replace(new, offset=meta.offset)
