"""``optimizer.param_groups`` in compiled code: what stands there, and of that only what is read."""

from __future__ import annotations

import functools
from typing import Any

from torch._dynamo.variables.optimizer import OptimizerVariable

from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def read_parameter_groups_as_they_are(is_ours: IsOurs) -> Patch:
    """An optimizer's parameter groups are read as any object's lists and dicts."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def set_capturable(self: Any, tx: Any) -> None:
            """What Dynamo does before they are read: here nothing."""
            if not is_ours(tx.output.compiler_fn):
                original(self, tx)

        return set_capturable

    return Patch(
        "read_parameter_groups_as_they_are",
        "Dynamo says that each group is capturable, and compiles again whenever any of its settings changes.",
        (Replace(OptimizerVariable, "_set_capturable", make),),
    )
