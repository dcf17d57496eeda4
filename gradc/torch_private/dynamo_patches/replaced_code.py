"""Code and defaults of functions, which somebody may replace in place: an editor's hot reload does, and so do tests.

Dynamo guards the code of a function that it found by way of the frame's variables. It guards nothing of a method's, for that
stands in a class; nor of what it met without such a way: ``__init__`` of an object that is made inside, say.
"""

from __future__ import annotations

import types
import weakref
from typing import Any

from torch._dynamo.variables import functions

from gradc.torch_private.dynamo_names import FUNCTIONS
from gradc.torch_private.dynamo_patches.class_attributes import definitions_now
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before

_codes: weakref.WeakKeyDictionary[types.FunctionType, types.CodeType] = weakref.WeakKeyDictionary()


def guard_code_of_functions() -> Patch:
    """Note each function that is traced into: the guard for classes looks at its code, and at defaults that Dynamo does not."""
    return Patch(
        "guard_code_of_functions",
        "A method whose code is replaced goes on as it was; one with other parameters is called by the names of the old ones.",
        (
            *(before(kind, "bind_args", _bind_args) for kind in FUNCTIONS),
            before(functions, "_get_spec", _forget_spec, may_be_missing=True),
        ),
    )


def _bind_args(self: Any, *args: Any, **kwargs: Any) -> None:
    if (definitions := definitions_now()) is not None and isinstance(self.fn, types.FunctionType):
        definitions.trace(self.fn, self.get_source())


def _forget_spec(func: types.FunctionType) -> None:
    """The names of a function's parameters, which Dynamo keeps for good: as its code has them now."""
    if _codes.get(func) is not func.__code__:
        functions._spec_cache.pop(func, None)
        _codes[func] = func.__code__
