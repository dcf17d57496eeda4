"""What torch's engine writes over when it adds up gradients: a sum of ours is to lie in memory, and be counted, as one of the
engine's.

    EngineSums.is_written_over: (addend, ...) -> bool             does_layout_tell: (addend, sum) -> bool

Who else holds a gradient decides, as in the engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import torch

from gradc.ir.metadata import tensor_meta
from gradc.torch_private.autograd import is_view, use_count

Known = Callable[[], Iterable[torch.Tensor]]

_USES = 4  # of a gradient that only one buffer holds, when the engine adds to it; one more, if it was given to the engine
_USES_BY_A_VIEW = 2  # of its base, both of them fake, where gradients are not recorded


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

    def is_written_over(self, addend: torch.Tensor, slot: int | None, is_input: bool, known: Known) -> bool:
        """True if the engine would write the sum over ``addend``, as nobody else held it but the recording, with its views.

        ``known``: () -> what the recording holds. Whether the addend has gaps or overlaps is not asked.
        """
        is_stealable = slot in self.stealable
        if not is_stealable and is_input:
            return False
        return _is_alone(addend, is_stealable) or (addend._version > 0 and _is_alone(addend, is_stealable, known()))

    def hangs_on(self, addend: torch.Tensor, slot: int | None) -> int | None:
        """The slot in ``given`` that ``addend`` is, or is written over, where that may be."""
        if slot is None or (slot in self.given and not _is_alone(addend, is_given=True)):
            return None
        return slot if slot in self.given else self.hanging.get(slot)


def _is_alone(addend: torch.Tensor, is_given: bool, known: Iterable[torch.Tensor] = ()) -> bool:
    """Whether only one buffer holds it, beside views in ``known`` that a formula wrote through and nobody else holds.

    ``is_given``: it was given to the engine.
    """
    if torch.is_grad_enabled() or tensor_meta(addend) is None:
        return False
    by_views = sum(_USES_BY_A_VIEW for each in known if each._base is addend and use_count(each) == 1)
    return use_count(addend) <= _USES + is_given + by_views and not is_view(addend)


def does_layout_tell(addend: torch.Tensor, total: torch.Tensor) -> bool:
    """True if the sum, written over ``addend``, has other strides than ``total``, which is new."""
    meta, new = tensor_meta(addend), tensor_meta(total)
    return meta is not None and new is not None and meta != dataclasses.replace(new, offset=meta.offset)
