"""Dynamo's callback, from which it finds gradc's backend at each frame: within reach now, not behind three wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo import eval_frame
from torch._dynamo.eval_frame import _TorchDynamoContext, innermost_backend

from gradc.torch_private.ours import is_callback_ours, is_ours
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

CallbackTo = Callable[[Any, Any], Any]


def find_backends_at_once(callback_to: CallbackTo) -> Patch:
    """``callback_to``: a callback, its backend -> the same callback, which leads to the backend in one step."""

    def init(original: Method, self: Any, callback: Any, *args: Any, **kwargs: Any) -> None:
        original(self, callback_to(callback, innermost_backend(callback)), *args, **kwargs)

    return Patch(
        "find_backends_at_once",
        "Dynamo asks each wrapper around the backend for the next one, at each frame: 12,000 instructions.",
        (
            around(_TorchDynamoContext, "__init__", init, scope=is_callback_ours),
            around(eval_frame, "_create_delayed_compile_callback", _delayed, scope=_is_ours),
        ),
    )


def _is_ours(callback: Any, *_: Any) -> bool:
    return is_ours(callback)


def _delayed(original: Method, callback: Any, stance: str) -> Any:
    """Goes by the wrappers."""
    return original(callback.__call__.__self__, stance)
