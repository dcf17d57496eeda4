"""``loss.backward()`` inside compiled code: gradc is asked before torch's Python; its frame gets other code, torch stays."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.convert_frame import CatchErrorsWrapper

from gradc.torch_private.dynamo_patches.code_replacement import called, in_place_of, left_early
from gradc.torch_private.ours import is_frame_ours
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_BACKWARD = torch.Tensor.backward.__code__
_ARGUMENTS = ("self", "gradient", "retain_graph", "create_graph", "inputs")

Run = Callable[[Any, Any, Any, Any, Any], bool]


def ask_before_backward(run: Run) -> Patch:
    """Where compiled code comes to ``Tensor.backward``, call ``run`` with its arguments; if that is true, all is done."""

    def call(original: Method, self: Any, frame: Any, *args: Any) -> Any:
        if frame.f_code is _BACKWARD:
            return in_place_of(_BACKWARD, _asking_first(run), "Tensor.backward")
        return original(self, frame, *args)

    return Patch(
        "ask_before_backward",
        "A backward pass is 10 us of Python before the engine begins, for cases that are not there where all is compiled.",
        (around(CatchErrorsWrapper, "__call__", call, scope=is_frame_ours),),
    )


@functools.cache
def _asking_first(run: Run) -> types.CodeType:
    assert _BACKWARD.co_varnames[: len(_ARGUMENTS)] == _ARGUMENTS
    return left_early(_BACKWARD, called(run, _ARGUMENTS))
