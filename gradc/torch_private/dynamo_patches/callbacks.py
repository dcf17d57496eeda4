"""Dynamo's callback, from which it finds gradc's backend at each frame: within reach now, not behind three wrappers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._dynamo import eval_frame
from torch._dynamo.eval_frame import _TorchDynamoContext, innermost_backend

from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

CallbackTo = Callable[[Any, Any], Any]


def find_backends_at_once(is_ours: IsOurs, callback_to: CallbackTo) -> Patch:
    """``callback_to``: a callback, its backend -> the same callback, which leads to the backend in one step."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def init(self: Any, callback: Any, *args: Any, **kwargs: Any) -> None:
            shorter = callback_to(callback, innermost_backend(callback)) if is_ours(callback) else callback
            original(self, shorter, *args, **kwargs)

        return init

    def make_delayed(original: Method) -> Method:
        @functools.wraps(original)
        def delayed(callback: Any, stance: str) -> Any:
            return original(callback.__call__.__self__ if is_ours(callback) else callback, stance)  # which goes by the wrappers

        return delayed

    return Patch(
        "find_backends_at_once",
        "Dynamo asks each wrapper around the backend for the next one, at each frame: 12,000 instructions.",
        (
            Replace(_TorchDynamoContext, "__init__", make),
            Replace(eval_frame, "_create_delayed_compile_callback", make_delayed),
        ),
    )
