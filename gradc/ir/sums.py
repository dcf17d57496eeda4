"""What torch's engine writes over when it adds up gradients: a sum of ours is to lie in memory as one of the engine's.

    EngineSums.is_written_over: (addend, sum) -> bool

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
    """

    def __init__(self) -> None:
        self.is_adding = False
        self.stealable: set[int] = set()

    def is_written_over(self, addend: torch.Tensor, total: torch.Tensor, slot: int | None, is_input: bool) -> bool:
        """True if the engine would write the sum over ``addend``, whose strides are others than those of ``total``.

        It would if nobody else held the addend; traced, the recording does, and makes a new tensor.
        """
        meta, new, is_stealable = tensor_meta(addend), tensor_meta(total), slot in self.stealable
        if torch.is_grad_enabled() or meta is None or new is None or meta == dataclasses.replace(new, offset=meta.offset):
            return False
        is_held = use_count(addend) > _USES + is_stealable or (is_input and not is_stealable)
        return not is_held and not is_view(addend)
