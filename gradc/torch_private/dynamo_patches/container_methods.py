"""What Python's containers do in the rare case: a deque that has a length, a key without a hash, keywords that meet."""

from __future__ import annotations

import dis
from typing import Any

from torch._dynamo.exc import raise_observed_exception
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.lists import DequeVariable
from torch._dynamo.variables.sets import SetVariable

from gradc.torch_private.dynamo_names import ANY_SET
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.operators import dispatch_tables
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around, before

_LOOK_UP = ("get", "pop", "discard", "remove")


def answer_as_containers_do() -> Patch:
    """See the module's docstring."""
    return Patch(
        "answer_as_containers_do",
        "Dynamo's deques lose their length, its dictionaries look for keys without a hash, and mappings are never missed.",
        (
            after(DequeVariable, "sq_repeat_impl", _bounded),
            around(DequeVariable, "call_method", _of_deque),
            before(ConstDictVariable, "call_method", _hash),
            before(ANY_SET, "call_method", _hash),
            around(SetVariable, "call_method", _of_set),
            *(before(table, dis.opmap[name], _merge) for table in dispatch_tables() for name in ("DICT_MERGE", "DICT_UPDATE")),
        ),
    )


def _bounded(made: Any, self: Any, *_: Any) -> Any:
    """The copies of a deque have its length."""
    length = self.maxlen.as_python_constant()
    if type(made) is DequeVariable and made is not self and length is not None:
        made.maxlen, made.items = self.maxlen, made.items[max(len(made.items) - length, 0) :]
    return made


def _of_deque(original: Method, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    made = original(self, tx, name, args, kwargs)
    return _bounded(made, self) if name == "copy" else made


def _hash(self: Any, tx: Any, name: str, args: Any, _kwargs: Any) -> None:
    """Python takes the hash of what it looks for, though it is not there; but for ``{}.pop``."""
    if name in _LOOK_UP and args:
        try:
            kind, own = args[0].realize().python_type(), self.python_type()
        except NotImplementedError:
            return
        if kind is set and isinstance(self, ANY_SET):
            end_graph("set that is looked for in a set", "Python looks for a frozenset of its items.")
        if kind.__hash__ is None and not (name == "pop" and own is dict and not self.items):
            raise_observed_exception(TypeError, tx, args=[f"unhashable type: '{kind.__name__}'"])


def _of_set(original: Method, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    made = original(self, tx, name, args, kwargs)
    return ConstantVariable.create(None) if name == "update" else made


def _merge(self: Any, inst: Any) -> None:
    """``{**given}``, ``f(**given)``: Python raises where ``given`` is no mapping, or a keyword is there already."""
    given, merged = self.stack[-1].realize(), self.stack[-1 - inst.arg].realize()
    try:
        is_mapping = hasattr(given.python_type(), "keys")
    except NotImplementedError:
        return
    if not is_mapping:
        end_graph("keywords that Python refuses", "What stands behind ** is no mapping.", given.python_type().__name__)
    if inst.opname == "DICT_MERGE" and isinstance(given, ConstDictVariable) and not given.items.keys().isdisjoint(merged.items):
        end_graph("keywords that Python refuses", "One of them is there already.")
