"""Dynamo's settings while it compiles for gradc: in force around gradc's own compilations only, the user's around others."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dynamo import config
from torch._dynamo.convert_frame import ConvertFrameAssert

from gradc.torch_private.ours import is_frame_ours, users_settings
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

# Guard against hooks registered later; do not time the bytecode before each graph; NumPy is not torch; what is asserted of a
# tensor is looked at there and then; recurrent modules are traced; what was traced is not even held weakly: a tensor with a
# weak reference cannot be swapped (``torch.utils.swap_tensors``).
OUR_SETTINGS: dict[str, Any] = {
    "skip_nnmodule_hook_guards": False,
    "record_runtime_overhead": False,
    "trace_numpy": False,
    "rewrite_assert_with_torch_assert": False,
    "allow_rnn": True,
    "invalidate_compile_context_weakrefs": True,
}
if hasattr(config, "computed_lazy_constant_max_nodes"):  # since 2.14; what is calculated of our floats would be constants
    OUR_SETTINGS["computed_lazy_constant_max_nodes"] = 0


_is_in_inference_mode: contextvars.ContextVar[bool] = contextvars.ContextVar("_is_in_inference_mode", default=False)


def was_called_in_inference_mode() -> bool:
    """True while Dynamo compiles for gradc what was called in inference mode: to trace it, Dynamo leaves that mode."""
    return _is_in_inference_mode.get()


def compile_under_our_settings(begun: Callable[[Any], AbstractContextManager[None]]) -> Patch:
    """Dynamo's settings, while it compiles for gradc: threads have settings of their own, so none could be set once for all.

    A compilation for another backend that goes on inside one of ours is under the user's settings again. ``begun`` is
    entered around each of ours: it gets the frame.
    """

    def call(original: Method, self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        with begun(frame), _our_settings():
            return original(self, frame, *args, **kwargs)

    def call_for_others(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
        with _settings_of_the_user():
            return original(self, *args, **kwargs)

    return Patch(
        "compile_under_our_settings",
        "Hooks registered later must be noticed; NumPy is called; an assertion about a tensor raises where it stands.",
        (
            around(ConvertFrameAssert, "__call__", call, scope=is_frame_ours),
            around(ConvertFrameAssert, "__call__", call_for_others, scope=is_frame_ours, for_others=True),
        ),
    )


@contextlib.contextmanager
def _our_settings() -> Iterator[None]:
    if users_settings.get() is not None:
        yield
        return
    token = users_settings.set({name: getattr(config, name) for name in OUR_SETTINGS})
    token_of_mode = _is_in_inference_mode.set(torch.is_inference_mode_enabled())
    try:
        with config.patch(OUR_SETTINGS):
            yield
    finally:
        _is_in_inference_mode.reset(token_of_mode)
        users_settings.reset(token)


@contextlib.contextmanager
def _settings_of_the_user() -> Iterator[None]:
    settings = users_settings.get()
    if settings is None:
        yield
        return
    token = users_settings.set(None)
    try:
        with config.patch(settings):
            yield
    finally:
        users_settings.reset(token)
