"""What ``copy.copy`` and ``copy.deepcopy`` ask an object for, where its class has a say, or it holds more than attributes."""

from __future__ import annotations

import copyreg
from typing import Any

from torch import nn
from torch._dynamo.polyfills.copy import reduce_ex_user_defined_object
from torch._dynamo.variables.functions import SkipFunctionVariable

from gradc.torch_private.dynamo_names import FUNCTIONS
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before

_REDUCE = reduce_ex_user_defined_object.__torch_dynamo_polyfill__  # type: ignore[attr-defined]
_METHODS = (list.copy, dict.copy)
_SAY = ("__reduce__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")


def copy_objects_as_python_does() -> Patch:
    """End the graph at ``__reduce_ex__`` of an object of which ``__dict__`` does not tell all; copy lists and the like."""
    return Patch(
        "copy_objects_as_python_does",
        "Dynamo copies attributes alone: no items of an object, no slots, nothing that methods give; a list ends the graph.",
        (
            *(before(kind, "call_function", _call) for kind in FUNCTIONS),
            around(SkipFunctionVariable, "call_function", _call_skipped),
        ),
    )


def _call(self: Any, tx: Any, args: Any, kwargs: Any) -> None:
    if self.fn is _REDUCE:
        copied = self.self_args()[0] if self.self_args() else args[0]
        if not _is_told_by_attributes(copied.python_type()):
            end_graph("copy of an object", "Its class says what is copied, or it has items or slots.", copied)


def _call_skipped(original: Method, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """``copy.copy`` asks a list or dictionary by the method of its class."""
    is_copy = any(self.value is method for method in _METHODS) and len(args) == 1 and not kwargs
    if is_copy and args[0].python_type() is self.value.__objclass__:
        return args[0].call_method(tx, "copy", [], {})
    return original(self, tx, args, kwargs)


def _is_told_by_attributes(cls: type) -> bool:
    says = any(getattr(cls, name, None) not in (getattr(object, name, None), getattr(nn.Module, name, None)) for name in _SAY)
    return not (says or issubclass(cls, (list, dict)) or copyreg._slotnames(cls))  # type: ignore[attr-defined]
