"""A number of Python's that changes from call to call (a temperature, the weight of a loss) runs as it is, between two graphs.

Dynamo makes a symbol of a float once it has changed. What Python calculates step by step becomes one expression, which rounds
otherwise, and on which the way of a branch may hang; and for what an op is given, there is no value.
"""

from __future__ import annotations

import functools
from typing import Any

from torch._dynamo.variables.builder import VariableBuilder

from gradc.torch_private.dynamo_patches.opaque import Kind, OpaqueVariable
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

FLOAT = Kind(
    (float,),
    "gradc: float that changes",
    "gradc leaves to Python what is done with a float that changes from call to call. As a tensor it is an input of the graph.",
)


def leave_changing_floats_to_python(is_ours: IsOurs) -> Patch:
    """End graphs where a float is used that was another in a call before. Until it changes, it is a constant, and guarded."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def wrap(self: Any, value: float) -> Any:
            found = original(self, value)
            is_left = is_ours(self.tx.output.compiler_fn) and not found.is_python_constant()
            return OpaqueVariable(value, FLOAT, source=self.source) if is_left else found

        return wrap

    return Patch(
        "leave_changing_floats_to_python",
        "Dynamo calculates with symbols where Python rounds at each step, and has no value for what an op is given.",
        (Replace(VariableBuilder, "wrap_symfloat", make),),
    )
