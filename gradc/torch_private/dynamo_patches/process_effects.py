"""What Dynamo changes in torch, for the rest of the process, when something is first compiled: nothing on gradc's behalf.

It turns off that ``torch.distributions`` checks its arguments, keeps LBFGS and others out of compiled code for good, and
follows each module that is made.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._dynamo.convert_frame import ConvertFrame, ConvertFrameReturn
from torch._dynamo.eval_frame import _TorchDynamoContext
from torch._dynamo.types import FrameAction, FrameExecStrategy

from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def leave_the_process_as_it_is(is_ours: IsOurs) -> Patch:
    """Compile without Dynamo's changes of torch; they come with the first thing that another backend compiles.

    Distributions then check their arguments in compiled code too: see ``distributions.py``. What TorchScript or FX traces
    inside is left as it is: Dynamo's changes kept it out of compiled code.
    """

    def make_init(original: Method) -> Method:
        @functools.wraps(original)
        def init(self: Any, callback: Any, *args: Any, **kwargs: Any) -> None:
            if is_ours(callback):
                kwargs = {name: value for name, value in kwargs.items() if name not in ("patch_fn", "on_enter")}
            original(self, callback, *args, **kwargs)

        return init

    def make_convert(original: Method) -> Method:
        @functools.wraps(original)
        def convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_traced() and is_ours(self._torchdynamo_orig_backend):
                skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.DEFAULT)
                return ConvertFrameReturn(frame_exec_strategy=skip, apply_to_code=False)
            return original(self, frame, *args, **kwargs)

        return convert

    return Patch(
        "leave_the_process_as_it_is",
        "At the first compilation Dynamo changes torch for the whole process: distributions no longer check their arguments.",
        (Replace(_TorchDynamoContext, "__init__", make_init), Replace(ConvertFrame, "__call__", make_convert)),
    )


def _is_traced() -> bool:
    return torch._C._is_tracing() or torch.fx._symbolic_trace.is_fx_symbolic_tracing()
