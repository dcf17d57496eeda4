"""Where Python chooses by the value of a tensor, or by what a class says is equal: ``max``, ``min``, ``in``, dictionaries."""

from __future__ import annotations

import dataclasses
import functools
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
from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

# What looks for a tensor by its hash, which is its identity's, and compares it with none.
_DICTIONARIES = (ConstDictVariable, DictKeysVariable, MappingProxyVariable, UserDefinedDictVariable)
_HASHING = (*_DICTIONARIES, ANY_SET, UserDefinedSetVariable)


def let_python_choose(is_ours: IsOurs) -> Patch:
    """End the graph where Python compares tensors to choose one of them, or asks objects which of them are equal."""

    def make_extremum(original: Method) -> Method:
        @functools.wraps(original)
        def extremum(self: Any, tx: Any, a: Any, b: Any) -> Any:
            if self.tensor_args(a, b) and is_ours(tx.output.compiler_fn):
                end_graph(f"{self.fn.__name__} of tensors", "Python returns one of them; torch's would share a gradient out.")
            return original(self, tx, a, b)

        return extremum

    def make_contains(original: Method) -> Method:
        @functools.wraps(original)
        def contains(tx: Any, container: Any, item: Any) -> Any:
            is_compared = item.is_tensor() and not container.is_tensor() and not isinstance(container.realize(), _HASHING)
            if is_compared and is_ours(tx.output.compiler_fn):
                end_graph("a tensor in a container", "Python asks whether it is one of them, and then whether it equals one.")
            return original(tx, container, item)

        return contains

    def make_equal(original: Method) -> Method:
        @functools.wraps(original)
        def is_equal(self: Any, other: Any) -> bool:
            if is_compiling_for_gradc() and _asks_its_class(self, other):
                end_graph("equality of objects in a dictionary", "Their class says which are equal.")
            return original(self, other)

        return is_equal

    def make_hash(original: Method) -> Method:
        @functools.wraps(original)
        def hash_of(self: Any, tx: Any) -> Any:
            if is_ours(tx.output.compiler_fn) and not _is_hash_of_all_fields(self.python_type()):
                end_graph("hash of a dataclass", "Its class says which fields count, or how it is calculated.")
            return original(self, tx)

        return hash_of

    return Patch(
        "let_python_choose",
        "For max and min of tensors Dynamo takes torch's: other ties and NaN. Objects it finds by identity, or all fields.",
        (
            Replace(BuiltinVariable, "_call_min_max_binary", make_extremum),
            *(Replace(asker, CONTAINS, make_contains) for asker in CONTAINS_ASKERS),
            Replace(*KEYS_ARE_EQUAL, make_equal),
            Replace(FrozenDataClassVariable, "hash_impl", make_hash),
        ),
    )


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
