"""How a class makes an object: Python calls its metaclass, and objects to arguments that neither of its methods takes.

Dynamo asks no metaclass, and drops such arguments.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import Any

from torch._dynamo.exc import raise_observed_exception
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.misc import SuperVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before


def make_objects_as_python_does() -> Patch:
    """End the graph where a metaclass has a say; let Python itself object to arguments: it does so before it makes anything."""
    return Patch(
        "make_objects_as_python_does",
        "Dynamo makes objects past their metaclasses, and of classes that take no arguments whatever these are given.",
        (
            before(UserDefinedClassVariable, "call_function", _class),
            before(SuperVariable, "call_method", _super),
            before(BuiltinVariable, "call_method", _object),
        ),
    )


def _class(self: Any, tx: Any, args: Any, kwargs: Any) -> None:
    if _is_made_by_metaclass(self.value):
        end_graph("metaclass with a __call__", "What it makes of a call is not traced.", self.value)
    if (args or kwargs) and self.value.__new__ is object.__new__:
        _ask(tx, object.__new__, self.value)


def _super(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> None:
    if name in ("__init__", "__new__"):
        function, _ = self._resolved_getattr_and_source(tx, name)
        if function is object.__init__ and (args or kwargs):
            _ask(tx, object.__init__, self.objvar.value)
        if function is object.__new__ and (args[1:] or kwargs):
            _ask(tx, object.__new__, args[0].value)


def _object(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> None:
    is_objects = self.fn is object and name in ("__init__", "__new__") and (args[1:] or (args and kwargs))
    if is_objects and hasattr(args[0], "value"):
        _ask(tx, getattr(object, name), args[0].value)


def _is_made_by_metaclass(cls: type) -> bool:
    call = type(cls).__call__
    return isinstance(call, types.FunctionType) and call is not enum.EnumMeta.__call__


def _ask(tx: Any, function: Callable[..., Any], first: Any) -> None:
    """Raise in the traced code what ``function(first, an argument)`` raises. It raises before it does anything."""
    try:
        function(first, None)
    except TypeError as error:
        raise_observed_exception(TypeError, tx, args=list(error.args))
