"""``optimizer.param_groups`` in compiled code: what stands there, and of that only what is read."""

from __future__ import annotations

import functools
from typing import Any

from torch._dynamo.variables.optimizer import OptimizerVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def read_parameter_groups_as_they_are(is_ours: IsOurs) -> Patch:
    """An optimizer's parameter groups are read as any object's lists and dicts."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def var_getattr(self: Any, tx: Any, name: str) -> Any:
            if name == "param_groups" and is_ours(tx.output.compiler_fn):
                return UserDefinedObjectVariable.var_getattr(self, tx, name)
            return original(self, tx, name)

        return var_getattr

    return Patch(
        "read_parameter_groups_as_they_are",
        "Dynamo says that each group is capturable, and compiles again whenever any of its settings changes.",
        (Replace(OptimizerVariable, "var_getattr", make),),
    )
