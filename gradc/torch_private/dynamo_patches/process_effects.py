"""What Dynamo changes in torch, for the rest of the process, when something is first compiled: nothing on gradc's behalf.

It turns off that ``torch.distributions`` checks its arguments, keeps LBFGS and others out of compiled code for good, and
follows each module that is made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.convert_frame import ConvertFrame, ConvertFrameReturn
from torch._dynamo.eval_frame import _TorchDynamoContext
from torch._dynamo.types import FrameAction, FrameExecStrategy

from gradc.torch_private.ours import is_callback_ours, is_frame_ours
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around


def leave_the_process_as_it_is() -> Patch:
    """Compile without Dynamo's changes of torch; they come with the first thing that another backend compiles.

    Distributions then check their arguments in compiled code too: see ``distributions.py``. What TorchScript or FX traces
    inside is left as it is: Dynamo's changes kept it out of compiled code.
    """
    return Patch(
        "leave_the_process_as_it_is",
        "At the first compilation Dynamo changes torch for the whole process: distributions no longer check their arguments.",
        (
            around(_TorchDynamoContext, "__init__", _init, scope=is_callback_ours),
            around(ConvertFrame, "__call__", _convert, scope=is_frame_ours),
        ),
    )


def _init(original: Method, self: Any, callback: Any, *args: Any, **kwargs: Any) -> None:
    kwargs = {name: value for name, value in kwargs.items() if name not in ("patch_fn", "on_enter")}
    original(self, callback, *args, **kwargs)


def _convert(original: Method, self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
    if _is_traced():
        skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.DEFAULT)
        return ConvertFrameReturn(frame_exec_strategy=skip, apply_to_code=False)
    return original(self, frame, *args, **kwargs)


def _is_traced() -> bool:
    return torch._C._is_tracing() or torch.fx._symbolic_trace.is_fx_symbolic_tracing()
