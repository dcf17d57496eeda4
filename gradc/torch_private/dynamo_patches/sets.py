"""The order of a set is Python's: it hangs on hashes, and on what the set held before."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import ValueMutationExisting, VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.sets import FrozensetVariable, SetVariable

from gradc.torch_private.dynamo_names import ANY_SET, LIST_METHODS
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")  # no result hangs on the order in which torch's code lists a set
_WITHOUT_ORDER = (sorted, min, max)
_WHY = "The order of a set depends on hashes, and on what it held before."


def keep_the_order_of_sets() -> Patch:
    """Leave code alone that lists or hands out a set which it made; end the graph where a set from outside changes.

    Behind the end of a graph a set is another, made anew, and one from outside is emptied and filled again: the order is not
    that of a set which grew and shrank.
    """
    return Patch(
        "keep_the_order_of_sets",
        "Dynamo's sets keep the order of insertion; those that it writes back, or hands out, are made anew.",
        (
            before(ANY_SET, "tp_iter_impl", _listing),
            before(ANY_SET, "unpack_var_sequence", _listing),
            around(ANY_SET, "call_method", _method),
            around(LIST_METHODS, "call_method", _method),
            before(SideEffects, "mutation", _mutation),
            before(SetVariable, "reconstruct", _reconstruct),
            before(FrozensetVariable, "reconstruct", _reconstruct),
            around(BuiltinVariable, "call_function", _call),
        ),
    )


def end_where_order_counts(numbers: VariableTracker, tx: Any) -> None:
    """Where they are added up: whole numbers alone have one sum."""
    items: Any = numbers.realize()
    if _has_order_of_its_own(items, tx) and any(not issubclass(each.vt.python_type(), int) for each in items.items):
        end_graph("order of a set", _WHY, skip_frame=True)


def _listing(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    if tx is not None and _has_order_of_its_own(self, tx):
        end_graph("order of a set", _WHY, skip_frame=True)


def _method(original: Method, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name == "add" and type(self) is SetVariable and len(args) == 1 and args[0] in self:
        self.install_set_contains_guard(tx, args)
        return ConstantVariable.create(None)
    listed = self if name == "pop" and isinstance(self, SetVariable) else args[0] if name == "extend" and args else None
    if listed is not None and _has_order_of_its_own(listed.realize(), tx):
        end_graph("order of a set", _WHY, skip_frame=True)
    return original(self, tx, name, args, kwargs)


def _call(original: Method, self: Any, tx: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``sorted(set(names))`` and the like: whatever the order is, the result is the same."""
    given = args[0].realize() if self.fn in _WITHOUT_ORDER and len(args) == 1 else None
    if given is None or type(given) not in (SetVariable, FrozensetVariable) or given.source:
        return original(self, tx, args, kwargs)
    if (result := _result(self.fn, given, kwargs)) is not None:
        return VariableTracker.build(tx, result)
    return original(self, tx, args, kwargs)


def _result(function: Any, given: Any, kwargs: Mapping[str, Any]) -> Any:
    """None where the order may show, and where Python raises."""
    if kwargs.keys() - {"reverse"} or not all(each.is_python_constant() for each in (given, *kwargs.values())):
        return None
    values = given.as_python_constant()
    if not values or not {*map(type, values)} <= {int, str, bytes}:
        return None
    try:
        return function(values, **{name: each.as_python_constant() for name, each in kwargs.items()})
    except TypeError:
        return None


def _mutation(self: Any, var: Any) -> None:
    is_from_outside = type(var) is SetVariable and isinstance(var.mutation_type, ValueMutationExisting)
    if is_from_outside and not _is_torchs(InstructionTranslator.current_tx()):
        end_graph("set from outside that changes", _WHY)


def _reconstruct(self: Any, codegen: Any) -> None:
    if _has_order_of_its_own(self, codegen.tx):
        end_graph("order of a set", _WHY, skip_frame=True)


def _has_order_of_its_own(items: Any, tx: Any) -> bool:
    """True if Python may list the set in another order than Dynamo."""
    if type(items) not in (SetVariable, FrozensetVariable):
        return False
    is_as_it_came = items.source is not None and list(items.items) == list(items.original_items)
    return len(items.items) > 1 and not is_as_it_came and not _is_torchs(tx)


def _is_torchs(tx: Any) -> bool:
    return tx.f_code.co_filename.startswith(_TORCH)
