"""A generator that was made outside of compiled code: Python runs it, and it goes on from where it is."""

from __future__ import annotations

import functools
import types
from typing import Any

from torch._dynamo.variables.builder import VariableBuilder

from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def leave_generators_to_python(is_ours: IsOurs) -> Patch:
    """A generator that has not begun is an object like one that has, of which Dynamo traces nothing."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def wrap(self: Any, value: Any) -> Any:
            if type(value) is types.GeneratorType and is_ours(self.tx.output.compiler_fn):
                return self.wrap_user_defined(value)
            return original(self, value)

        return wrap

    return Patch(
        "leave_generators_to_python",
        "Since torch 2.14, Dynamo traces one that has not begun from its start, as often as it compiles; it never moves.",
        (Replace(VariableBuilder, "_wrap", make),),
    )
