"""What ``copy.copy`` and ``copy.deepcopy`` ask an object for, where its class has a say, or it holds more than attributes."""

from __future__ import annotations

import copyreg
from typing import Any

from torch import nn
from torch._dynamo.polyfills.copy import reduce_ex_user_defined_object

from gradc.torch_private.dynamo_names import FUNCTIONS
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before

_REDUCE = reduce_ex_user_defined_object.__torch_dynamo_polyfill__  # type: ignore[attr-defined]
_SAY = ("__reduce__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")


def copy_objects_as_python_does() -> Patch:
    """End the graph at ``__reduce_ex__`` of an object of which ``__dict__`` does not tell all."""
    return Patch(
        "copy_objects_as_python_does",
        "Dynamo copies attributes alone: no items of a list or dictionary, no slots, and nothing that methods give for a copy.",
        tuple(before(kind, "call_function", _call) for kind in FUNCTIONS),
    )


def _call(self: Any, tx: Any, args: Any, kwargs: Any) -> None:
    if self.fn is _REDUCE:
        copied = self.self_args()[0] if self.self_args() else args[0]
        if not _is_told_by_attributes(copied.python_type()):
            end_graph("copy of an object", "Its class says what is copied, or it has items or slots.", copied)


def _is_told_by_attributes(cls: type) -> bool:
    says = any(getattr(cls, name, None) not in (getattr(object, name, None), getattr(nn.Module, name, None)) for name in _SAY)
    return not (says or issubclass(cls, (list, dict)) or copyreg._slotnames(cls))  # type: ignore[attr-defined]
