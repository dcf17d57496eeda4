"""Where Python chooses by the value of a tensor, or by hashes: ``max``, ``min``, ``in``, the order of a set."""

from __future__ import annotations

import functools
import os
import types
from typing import Any

import torch
from torch._dynamo import symbolic_convert
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.dicts import ConstDictVariable, DictKeysVariable, MappingProxyVariable
from torch._dynamo.variables.lists import CommonListMethodsVariable
from torch._dynamo.variables.sets import FrozensetVariable, SetVariable
from torch._dynamo.variables.user_defined import UserDefinedDictVariable, UserDefinedObjectVariable, UserDefinedSetVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
# What looks for a tensor by its hash, which is its identity's, and compares it with none.
_DICTIONARIES = (ConstDictVariable, DictKeysVariable, MappingProxyVariable, UserDefinedDictVariable)
_HASHING = (*_DICTIONARIES, SetVariable, UserDefinedSetVariable)


def let_python_choose(is_ours: IsOurs) -> Patch:
    """End the graph where Python compares tensors to choose one of them; leave code alone that lists a set which it made.

    Behind the end of a graph a set is another, made anew: its order is not that of a set which grew and shrank.
    """

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

    def make_listing(original: Method) -> Method:
        @functools.wraps(original)
        def listing(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            if tx is not None and is_ours(tx.output.compiler_fn) and _has_order_of_its_own(self, tx):
                end_graph("order of a set", "It depends on hashes, and on what the set held before.", skip_frame=True)
            return original(self, tx, *args, **kwargs)

        return listing

    def make_method(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            listed = self if name == "pop" and isinstance(self, SetVariable) else args[0] if name == "extend" and args else None
            if listed is not None and is_ours(tx.output.compiler_fn) and _has_order_of_its_own(listed.realize(), tx):
                end_graph("order of a set", "It depends on hashes, and on what the set held before.", skip_frame=True)
            return original(self, tx, name, args, kwargs)

        return call

    def make_equal(original: Method) -> Method:
        @functools.wraps(original)
        def is_equal(self: Any, other: Any) -> bool:
            is_asked = isinstance(getattr(self.python_type(), "__eq__", None), types.FunctionType)
            if is_asked and is_compiling_for_gradc() and isinstance(other, UserDefinedObjectVariable):
                end_graph("equality of objects in a dictionary", "Their class says which are equal.")
            return original(self, other)

        return is_equal

    return Patch(
        "let_python_choose",
        "For max and min of tensors Dynamo takes torch's, which differ in ties and NaN; its sets keep the order of insertion.",
        (
            Replace(BuiltinVariable, "_call_min_max_binary", make_extremum),
            Replace(symbolic_convert, "generic_contains", make_contains),
            Replace(SetVariable, "tp_iter_impl", make_listing),
            Replace(SetVariable, "unpack_var_sequence", make_listing),
            Replace(SetVariable, "call_method", make_method),
            Replace(UserDefinedObjectVariable, "is_python_equal", make_equal),
            Replace(CommonListMethodsVariable, "call_method", make_method),
        ),
    )


def _has_order_of_its_own(items: Any, tx: Any) -> bool:
    """True if Python may list the set in another order than Dynamo. No result hangs on the order in which torch's code does."""
    if type(items) not in (SetVariable, FrozensetVariable):
        return False
    is_as_it_came = items.source is not None and list(items.items) == list(items.original_items)
    return len(items.items) > 1 and not is_as_it_came and not tx.f_code.co_filename.startswith(_TORCH)
