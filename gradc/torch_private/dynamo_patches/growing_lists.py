"""Lists that grow from call to call, as a log of losses does: Python appends to them, and the step is compiled once.

Dynamo guards a list's length, and so compiles a step with ``losses.append(loss.item())`` at each call, until its limit.
"""

from __future__ import annotations

import types
import weakref
from typing import Any, NamedTuple

from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import LocalSource
from torch._dynamo.variables.builder import VariableBuilder

from gradc.torch_private.dynamo_patches.opaque import Kind, OpaqueVariable
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_GROWING = Kind((list,), "list that grows", "gradc leaves it to Python: compiled, each length of it would be another program.")
_GROWTHS = 2  # one may be a list that is filled at the first call
_NEAR = 6  # instructions


class _Seen(NamedTuple):
    """A list, as it was when the code that reads it was last traced."""

    address: int
    length: int
    growths: int


_seen: weakref.WeakKeyDictionary[types.CodeType, dict[str, _Seen]] = weakref.WeakKeyDictionary()


def leave_growing_lists_to_python() -> Patch:
    """Hand on a list that has grown each time a function was compiled, and end the graph where it is used.

    Under ``fullgraph=True`` it is compiled anew for each length, as by Dynamo.
    """
    return Patch(
        "leave_growing_lists_to_python",
        "A list that is appended to at each call was a new program at each: up to Dynamo's limit, and then none was compiled.",
        (around(VariableBuilder, "_wrap", _wrap),),
    )


def _wrap(original: Method, self: Any, value: Any) -> Any:
    if not self.source or self.tx.one_graph:
        return original(self, value)
    is_list = type(value) is list and (
        _grows(self.tx.output.root_tx.f_code, self.source.name, value) or _is_given_a_number(self.tx)
    )
    if not is_list and not _is_method_on_the_stack(value, self.source):
        return original(self, value)
    self.install_guards(GuardBuilder.TYPE_MATCH)
    return OpaqueVariable(value, _GROWING, source=self.source)


def _is_given_a_number(tx: Any) -> bool:
    """``losses.append(loss.item())``: the graph ends in what is appended, so that nothing is lost."""
    place = tx.indexof[tx.current_instruction]
    names = [inst.argval for inst in tx.instructions[place : place + _NEAR] if inst.opname in ("LOAD_METHOD", "LOAD_ATTR")]
    return names[:1] == ["append"] and "item" in names


def _is_method_on_the_stack(value: Any, source: Any) -> bool:
    """``losses.append``, where the graph ended in what it is to append: an object that is made for each call."""
    is_method = isinstance(value, types.BuiltinMethodType) and type(value.__self__) is list
    return is_method and isinstance(source, LocalSource)


def _grows(code: types.CodeType, name: str, value: list[Any]) -> bool:
    known = _seen.setdefault(code, {})
    before = known.get(name)
    if before is None or before.address != id(value) or len(value) < before.length:
        before = _Seen(id(value), len(value), 0)
    growths = before.growths + (len(value) > before.length)
    known[name] = _Seen(id(value), len(value), growths)
    return growths >= _GROWTHS
