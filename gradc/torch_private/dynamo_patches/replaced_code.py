"""Code and defaults of functions, which somebody may replace in place: an editor's hot reload does, and so do tests.

Dynamo guards the code of a function that it found by way of the frame's variables. It guards nothing of a method's, for that
stands in a class; nor of what it met without such a way: ``__init__`` of an object that is made inside, say.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

from torch._dynamo.variables import functions

from gradc.torch_private.dynamo_names import FUNCTIONS
from gradc.torch_private.dynamo_patches.class_attributes import definitions_now
from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import Method, Patch, Replace


def guard_code_of_functions() -> Patch:
    """Note each function that is traced into: the guard for classes looks at its code, and at defaults that Dynamo does not."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def bind_args(self: Any, *args: Any, **kwargs: Any) -> Any:
            if (definitions := definitions_now()) is not None and isinstance(self.fn, types.FunctionType):
                definitions.trace(self.fn, self.get_source())
            return original(self, *args, **kwargs)

        return bind_args

    return Patch(
        "guard_code_of_functions",
        "A method whose code is replaced goes on as it was; one with other parameters is called by the names of the old ones.",
        (
            *(Replace(kind, "bind_args", make) for kind in FUNCTIONS),
            Replace(functions, "_get_spec", _make_spec, may_be_missing=True),
        ),
    )


def _make_spec(original: Method) -> Method:
    """The names of a function's parameters, which Dynamo keeps for good: as its code has them now."""
    codes: weakref.WeakKeyDictionary[types.FunctionType, types.CodeType] = weakref.WeakKeyDictionary()

    @functools.wraps(original)
    def get_spec(function: types.FunctionType) -> Any:
        if is_compiling_for_gradc() and codes.get(function) is not function.__code__:
            functions._spec_cache.pop(function, None)
            codes[function] = function.__code__
        return original(function)

    return get_spec
