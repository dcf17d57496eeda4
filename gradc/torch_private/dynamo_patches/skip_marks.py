"""Functions that another compiler gave up in the same process: Dynamo's mark on them would hold for gradc, too, uncounted."""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

import torch
from torch._dynamo.convert_frame import CatchErrorsWrapper, input_codes
from torch._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code

from gradc.torch_private.dynamo_patches.code_replacement import begun_with, in_place_of
from gradc.torch_private.optimizers import HOOKED, NOT_LOOKED_INTO
from gradc.torch_private.ours import is_frame_ours
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import after

_marked: weakref.WeakSet[types.CodeType] = weakref.WeakSet()
_SHARED = (torch.Tensor.backward.__code__, HOOKED, NOT_LOOKED_INTO)  # that gradc has other code for


def note_what_others_give_up() -> Patch:
    """Keep in mind which functions other compilers leave to Python for good, for ``ask_again``.

    Not functions of torch's that gradc has other code for: for the other compiler, their own code passes for its work.
    """
    return Patch(
        "note_what_others_give_up",
        "Dynamo leaves a function that one compiler gave up to Python under every compiler, and asks none of them.",
        (after(CatchErrorsWrapper, "_handle_skip", _note, scope=is_frame_ours, for_others=True),),
    )


def _note(answer: Any, self: Any, result: Any, frame: Any) -> Any:
    if answer.guarded_code is None and answer.apply_to_code:
        if frame.f_code in _SHARED:
            return in_place_of(frame.f_code, begun_with(frame.f_code, ()), "what another compiler leaves to Python")
        _marked.add(frame.f_code)
    return answer


def ask_again() -> None:
    """Take Dynamo's mark off the functions that other compilers gave up, so that gradc is asked. What they compiled stays."""
    for codes in (_asked_before_gradc(), _marked):
        for code in tuple(codes):
            if not _debug_get_cache_entry_list(code):
                reset_code(code)
        codes.clear()


@functools.cache
def _asked_before_gradc() -> list[types.CodeType]:
    """What Dynamo was asked for before the patch was there."""
    return [*_SHARED, *(code for reference in input_codes.seen if (code := reference()) is not None)]
