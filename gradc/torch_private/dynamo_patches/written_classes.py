"""Attributes of classes and functions that compiled code writes: Dynamo writes them behind the graph, and reads before it."""

from __future__ import annotations

import enum
from typing import Any

from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables.functions import BaseUserFunctionVariable, SkipFunctionVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before

_SHARED = (UserDefinedClassVariable, BaseUserFunctionVariable, SkipFunctionVariable)


def write_into_classes_eagerly() -> Patch:
    """End the graph where an attribute of a class or function is written or deleted, if it was there before the call.

    Many ways lead to such an object: instances, subclasses, ``type(x)``, another name, the cell of a decorator. Dynamo has a
    variable for each, and notes what is written at the one that it was written by; the others tell what was there before.
    """
    return Patch(
        "write_into_classes_eagerly",
        "What is written into a class, Dynamo does not find in its instances and subclasses; nor in a function's other names.",
        (before(SideEffects, "store_attr", _store_attr),),
    )


def _store_attr(self: Any, item: Any, name: str, *args: Any, **kwargs: Any) -> None:
    is_shared = isinstance(item, _SHARED) or isinstance(vars(item).get("value"), enum.Enum)
    if is_shared and item.source:
        why = "Instances, subclasses and other names of it would still have what was there before."
        end_graph("attribute of a class or function", why, name)
