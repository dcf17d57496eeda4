"""Errors that Python raises by itself, as of ``[].shape``, ``(1, 2)[5]`` or ``range(1, 9, 0)``, where a graph is traced.

Dynamo raises them in Python's place: it words many otherwise, and gives no error for an attribute that nobody uses. Here what
is not there is missed at once, and the graph ends where an ``except ... as error`` gets an error that Dynamo has worded.
"""

from __future__ import annotations

import builtins
import dis
import pathlib
from collections.abc import Callable
from typing import Any

from torch._dynamo import polyfills
from torch._dynamo.exc import raise_observed_exception
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables.builtin import BuiltinVariable, GetAttrBuiltinVariable
from torch._dynamo.variables.misc import GetAttrVariable

from gradc.torch_private.dynamo_names import LOADS_ATTRIBUTES, RAISED_EXCEPTION
from gradc.torch_private.dynamo_patches.attributes import asked
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.operators import dispatch_tables
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before

_POLYFILLS = str(pathlib.Path(polyfills.__file__).parent)  # in Python what is C
_OF_THE_USERS = "gradc_raised_by_the_user"  # of an exception: a raise of the program has made it
_LATE = (range, format)  # Dynamo looks at their arguments where their results are used


def raise_as_python_does() -> Patch:
    """See the module's docstring."""
    return Patch(
        "raise_as_python_does",
        "Dynamo raises errors of Python's own with other words, and none where an attribute that is not there is not used.",
        (
            *(around(table, dis.opmap["RAISE_VARARGS"], _raise) for table in dispatch_tables()),
            around(InstructionTranslatorBase, "check_if_exc_matches", _match),
            around(GetAttrBuiltinVariable, "_call_getattr", _attribute),
            *(around(module, name, _attribute) for module, name in LOADS_ATTRIBUTES),
            before(BuiltinVariable, "call_function", _call),
        ),
    )


def _raise(original: Method, self: Any, inst: Any) -> Any:
    try:
        return original(self, inst)
    finally:
        if inst.arg and not self.f_code.co_filename.startswith(_POLYFILLS):  # not raised again
            vars(getattr(self.exn_vt_stack, RAISED_EXCEPTION)())[_OF_THE_USERS] = True


def _match(original: Method, self: Any) -> bool:
    error = self.stack[-2]
    matches: bool = original(self)
    if matches and not _has_eagers_words(error) and _is_bound(self):
        kind = error.python_type().__name__
        end_graph("error of Python's own", "Dynamo has raised it in Python's place, perhaps with other words.", kind)
    return matches


def _has_eagers_words(error: Any) -> bool:
    """What the program has raised; and the end of an iterator, whose argument is a value."""
    return _OF_THE_USERS in vars(error) or error.python_type() is StopIteration


def _is_bound(tx: Any) -> bool:
    """Whether the clause of the ``except`` that is asked gives the error a name: behind the jump to the next clause."""
    place = tx.indexof[tx.current_instruction]
    return any(inst.opname.startswith("STORE_") for inst in tx.instructions[place + 2 : place + 3])


def _attribute(original: Method, *args: Any, **kwargs: Any) -> Any:
    tx, item, name = asked(*args)
    found = original(*args, **kwargs)
    if type(found) is GetAttrVariable and (told := _missing(item, name)):
        raise_observed_exception(AttributeError, tx, args=[told])
    return found


def _missing(item: Any, name: str) -> str:
    """What Python says if there is no such attribute, and nobody else may know one; else nothing."""
    if isinstance(item, BuiltinVariable):
        return "" if hasattr(item.fn, name) else _error_of(getattr, item.fn, name)[1][0]
    try:
        kind = item.python_type()
    except NotImplementedError:
        return ""
    is_closed = kind.__module__ == builtins.__name__ and not kind.__dictoffset__
    if not is_closed or kind is super or any(name in vars(cls) for cls in kind.__mro__):
        return ""
    return f"'{kind.__name__}' object has no attribute '{name}'"


def _call(self: Any, tx: Any, args: Any, kwargs: Any) -> None:
    if self.fn in _LATE and all(arg.is_python_constant() for arg in args) and not kwargs:
        kind, told = _error_of(self.fn, *(arg.as_python_constant() for arg in args))
        if kind is not None:
            raise_observed_exception(kind, tx, args=list(told))


def _error_of(function: Callable[..., Any], *args: Any) -> tuple[type[Exception] | None, tuple[Any, ...]]:
    try:
        function(*args)
    except Exception as error:
        return type(error), error.args
    return None, ()
