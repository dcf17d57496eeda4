"""Where Python chooses by the value of a tensor, or by what a class says is equal: ``max``, ``min``, ``in``, dictionaries."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.dicts import ConstDictVariable, DictKeysVariable, MappingProxyVariable
from torch._dynamo.variables.user_defined import (
    FrozenDataClassVariable,
    UserDefinedDictVariable,
    UserDefinedObjectVariable,
    UserDefinedSetVariable,
)

from gradc.torch_private.dynamo_names import ANY_SET, CONTAINS, CONTAINS_ASKERS, KEYS_ARE_EQUAL
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before

# What looks for a tensor by its hash, which is its identity's, and compares it with none.
_DICTIONARIES = (ConstDictVariable, DictKeysVariable, MappingProxyVariable, UserDefinedDictVariable)
_HASHING = (*_DICTIONARIES, ANY_SET, UserDefinedSetVariable)


def let_python_choose() -> Patch:
    """End the graph where Python compares tensors to choose one of them, or asks objects which of them are equal."""
    return Patch(
        "let_python_choose",
        "For max and min of tensors Dynamo takes torch's: other ties and NaN. Objects it finds by identity, or all fields.",
        (
            before(BuiltinVariable, "_call_min_max_binary", _extremum),
            *(before(asker, CONTAINS, _contains) for asker in CONTAINS_ASKERS),
            before(*KEYS_ARE_EQUAL, _equal),
            before(FrozenDataClassVariable, "hash_impl", _hash),
        ),
    )


def _extremum(self: Any, tx: Any, a: Any, b: Any) -> None:
    if self.tensor_args(a, b):
        end_graph(f"{self.fn.__name__} of tensors", "Python returns one of them; torch's would share a gradient out.")


def _contains(tx: Any, obj: Any, item: Any) -> None:
    if item.is_tensor() and not obj.is_tensor() and not isinstance(obj.realize(), _HASHING):
        end_graph("a tensor in a container", "Python asks whether it is one of them, and then whether it equals one.")


def _equal(self: Any, other: Any) -> None:
    if _asks_its_class(self, other):
        end_graph("equality of objects in a dictionary", "Their class says which are equal.")


def _hash(self: Any, tx: Any) -> None:
    if not _is_hash_of_all_fields(self.python_type()):
        end_graph("hash of a dataclass", "Its class says which fields count, or how it is calculated.")


def _asks_its_class(one: Any, other: Any) -> bool:
    """True of two objects, or of the keys made of them, that a function of the class compares: not of one and the same."""
    one, other = (getattr(each, "vt", each) for each in (one, other))
    one, other = (each.realize() if isinstance(each, VariableTracker) else each for each in (one, other))
    if one is other or not all(isinstance(each, UserDefinedObjectVariable) for each in (one, other)):
        return False
    return isinstance(getattr(one.python_type(), "__eq__", None), types.FunctionType)


def _is_hash_of_all_fields(cls: Any) -> bool:
    """Whether a frozen dataclass has the hash that it is given, and leaves out none of its fields."""
    calculated = getattr(getattr(cls.__hash__, "__code__", None), "co_filename", "")
    return calculated == "<string>" and all(field.compare and field.hash is not False for field in dataclasses.fields(cls))
