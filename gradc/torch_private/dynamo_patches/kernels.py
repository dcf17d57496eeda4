"""Kernels of ops that are written in Python: they run as they are, within the op that a region calls as a whole."""

from __future__ import annotations

from typing import Any

from torch._dynamo.convert_frame import ConvertFrame, ConvertFrameReturn
from torch._dynamo.types import FrameAction, FrameExecStrategy

from gradc.torch_private.modes import is_below_autograd
from gradc.torch_private.ours import is_frame_ours
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around


def leave_kernels_alone() -> Patch:
    """Do not compile what the dispatcher calls below autograd: the kernels of ``torch.library`` ops, and what they call.

    Dynamo sees their frames when a compiled function calls such an op. torch keeps it from those of ``custom_op`` itself.
    """
    return Patch(
        "leave_kernels_alone",
        "A region builds autograd nodes: below autograd there are none, and the same code may be called above it, too.",
        (around(ConvertFrame, "__call__", _convert, scope=is_frame_ours),),
    )


def _convert(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_below_autograd():
        return original(self, *args, **kwargs)
    skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
    return ConvertFrameReturn(frame_exec_strategy=skip, apply_to_code=False)
