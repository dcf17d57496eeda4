"""Whose a compilation is: gradc's, or another backend's of torch.compile.

options_of: a backend, under whatever wrappers of torch's -> CompileOptions | None        is_ours, budget_of: of the same
is_compiling_for_gradc: () -> True while Dynamo compiles for gradc in this thread
users_settings:         what is set meanwhile: the user's settings of Dynamo; None while it compiles for nobody or others
is_frame_ours:          one of Dynamo's wrappers around a backend, which is asked for each frame -> True if that is gradc
"""

from __future__ import annotations

import contextvars
from typing import Any

from gradc.options import CompileOptions

_WRAPPERS = ("_torchdynamo_orig_backend", "__wrapped__", "compiler_fn", "backend_compile_fn", "__self__")
_KNOWN = "gradc_is_ours"  # of a wrapper, which keeps its backend

users_settings: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("users_settings", default=None)


def options_of(compiler: Any) -> CompileOptions | None:
    """The options of a backend that is gradc, under whatever wrappers of torch's; None for another backend."""
    found = _under_wrappers(compiler)
    return found.compile_options if found is not None else None


def budget_of(compiler: Any) -> Any:
    """The time that a backend has, if it is gradc."""
    return getattr(_under_wrappers(compiler), "budget", None)


def _under_wrappers(compiler: Any) -> Any:
    while compiler is not None and not isinstance(getattr(compiler, "compile_options", None), CompileOptions):
        compiler = next((getattr(compiler, name) for name in _WRAPPERS if hasattr(compiler, name)), None)
    return compiler


def is_ours(compiler: Any) -> bool:
    return options_of(compiler) is not None


def is_compiling_for_gradc() -> bool:
    return users_settings.get() is not None


def is_frame_ours(wrapper: Any, *_: Any, **__: Any) -> bool:
    known: bool | None = vars(wrapper).get(_KNOWN)
    if known is None:
        known = vars(wrapper)[_KNOWN] = is_ours(wrapper)
    return known


def is_callback_ours(context: Any, callback: Any, *_: Any, **__: Any) -> bool:
    return is_ours(callback)
