"""``optimizer.zero_grad()`` inside compiled code, done by gradc itself: its frame gets other code, torch stays."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch._dynamo.bytecode_transformation import create_call_function_ex, create_instruction, create_load_const
from torch._dynamo.convert_frame import CatchErrorsWrapper, ConvertFrameReturn

from gradc.torch_private.dynamo_patches.other_code import begun_with, cut_to, in_place_of, without_dynamo
from gradc.torch_private.optimizers import NOT_LOOKED_INTO, ZERO_GRAD
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def clear_gradients_natively(is_ours: IsOurs, zero_grad: Callable[..., None]) -> Patch:
    """Where compiled code comes to torch's ``Optimizer.zero_grad``, run ``zero_grad`` in its place.

    All functions that torch hides from Dynamo have one layer around, of the same code: the others go on with theirs.
    """

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, frame: Any, *args: Any) -> Any:
            if frame.f_code is NOT_LOOKED_INTO and is_ours(self):
                return _in_place_of(frame.f_code, zero_grad) if frame.f_locals["fn"] is ZERO_GRAD else _itself(frame.f_code)
            return original(self, frame, *args)

        return call

    return Patch(
        "clear_gradients_natively",
        "torch's zero_grad takes 25 to 70 us, for profilers and in Python, before each forward.",
        (Replace(CatchErrorsWrapper, "__call__", make),),
    )


def _in_place_of(code: types.CodeType, zero_grad: Callable[..., None]) -> ConvertFrameReturn:
    body = [
        create_load_const(without_dynamo(zero_grad), checked=False),
        create_instruction("LOAD_FAST", argval="args"),
        create_instruction("LOAD_FAST", argval="kwargs"),
        *create_call_function_ex(True, True),
        create_instruction("RETURN_VALUE"),
    ]
    what = "fn is the zero_grad of torch's optimizers"
    return in_place_of(code, cut_to(code, body), what, lambda values: values["fn"] is ZERO_GRAD)


def _itself(code: types.CodeType) -> ConvertFrameReturn:
    what = "fn is not the zero_grad of torch's optimizers"
    return in_place_of(code, begun_with(code, ()), what, lambda values: values["fn"] is not ZERO_GRAD)
