"""``optimizer.zero_grad()`` inside compiled code, done by gradc itself: its frame gets other code, torch stays."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch._dynamo.bytecode_transformation import create_call_function_ex, create_instruction, create_load_const
from torch._dynamo.convert_frame import CatchErrorsWrapper, ConvertFrameReturn

from gradc.torch_private.dynamo_patches.code_replacement import Is, begun_with, cut_to, in_place_of, unless_done, without_dynamo
from gradc.torch_private.optimizers import NOT_LOOKED_INTO, ZERO_GRAD, Quick
from gradc.torch_private.ours import is_frame_ours
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around


def clear_gradients_natively(zero_grad: Callable[..., None], quick_zero_grad: Callable[[], Quick | None]) -> Patch:
    """Where compiled code comes to torch's ``Optimizer.zero_grad``, run ``zero_grad`` in its place.

    What ``quick_zero_grad`` gives is run before: if that is true, all is done. All functions that torch hides from Dynamo have
    one layer around, of the same code: the others go on with theirs.
    """

    def call(original: Method, self: Any, frame: Any, *args: Any) -> Any:
        if frame.f_code is NOT_LOOKED_INTO:
            if frame.f_locals["fn"] is not ZERO_GRAD:
                return _itself(frame.f_code)
            return _in_place_of(frame.f_code, zero_grad, quick_zero_grad())
        return original(self, frame, *args)

    return Patch(
        "clear_gradients_natively",
        "torch's zero_grad takes 25 to 70 us, for profilers and in Python, before each forward.",
        (around(CatchErrorsWrapper, "__call__", call, scope=is_frame_ours),),
    )


def _in_place_of(code: types.CodeType, zero_grad: Callable[..., None], quick: Quick | None) -> ConvertFrameReturn:
    arguments = [create_instruction("LOAD_FAST", argval=name) for name in ("args", "kwargs")]
    body = [
        create_load_const(without_dynamo(zero_grad), checked=False),
        *arguments,
        *create_call_function_ex(True, True),
        create_instruction("RETURN_VALUE"),
    ]
    body = [*unless_done(quick.run, body[0]), *body] if quick else body
    what = "fn is the zero_grad of torch's optimizers"
    return in_place_of(code, cut_to(code, body), what, Is("fn", ZERO_GRAD))


def _itself(code: types.CodeType) -> ConvertFrameReturn:
    what = "fn is not the zero_grad of torch's optimizers"
    return in_place_of(code, begun_with(code, ()), what, lambda values: values["fn"] is not ZERO_GRAD)
