"""``optimizer.param_groups`` in compiled code: what stands there, and of that only what is read."""

from __future__ import annotations

from typing import Any

from torch._dynamo.variables.optimizer import OptimizerVariable

from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import instead


def read_parameter_groups_as_they_are() -> Patch:
    """An optimizer's parameter groups are read as any object's lists and dicts."""
    return Patch(
        "read_parameter_groups_as_they_are",
        "Dynamo says that each group is capturable, and compiles again whenever any of its settings changes.",
        (instead(OptimizerVariable, "_set_capturable", _set_nothing),),
    )


def _set_nothing(self: Any, tx: Any) -> None:
    """What Dynamo does before they are read."""
