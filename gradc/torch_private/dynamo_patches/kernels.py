"""Kernels of ops that are written in Python: they run as they are, within the op that a region calls as a whole."""

from __future__ import annotations

import functools
from typing import Any

from torch._dynamo.convert_frame import ConvertFrame, ConvertFrameReturn
from torch._dynamo.types import FrameAction, FrameExecStrategy

from gradc.torch_private.modes import is_below_autograd
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def leave_kernels_alone(is_ours: IsOurs) -> Patch:
    """Do not compile what the dispatcher calls below autograd: the kernels of ``torch.library`` ops, and what they call.

    Dynamo sees their frames when a compiled function calls such an op. torch keeps it from those of ``custom_op`` itself.
    """

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def convert(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_below_autograd() or not is_ours(self._torchdynamo_orig_backend):
                return original(self, *args, **kwargs)
            skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
            return ConvertFrameReturn(frame_exec_strategy=skip, apply_to_code=False)

        return convert

    return Patch(
        "leave_kernels_alone",
        "A region builds autograd nodes: below autograd there are none, and the same code may be called above it, too.",
        (Replace(ConvertFrame, "__call__", make),),
    )
