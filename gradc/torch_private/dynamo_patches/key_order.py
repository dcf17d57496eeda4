"""The order of a dictionary's keys, wherever a program lists them, as ``[*d]`` and ``f(**d)`` do: another one is another call.

Dynamo guards the order where it iterates, and of an OrderedDict not the one in which it gives its keys: ``move_to_end`` changes
that one, and not the order of the dictionary underneath.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch._dynamo.guards import GuardBuilder, GuardManagerType
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.builtin import DictBuiltinVariable
from torch._dynamo.variables.dicts import ConstDictVariable

from gradc.torch_private.dynamo_names import DICTIONARIES, LIST_METHODS, LISTS_THAT_GROW, REPR
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around, before

_IS_ASKED = "gradc_is_asked"  # of a variable, while Dynamo asks whether it is a constant
_OF_ORDER = "move_to_end"  # a method that no dictionary without an order has: by it the guard comes to the dictionary


def guard_the_order_of_keys() -> Patch:
    """See the module's docstring."""
    return Patch(
        "guard_the_order_of_keys",
        "Dynamo lists the keys of a dictionary in the order of the first call, also for one that has them in another.",
        (
            after(ConstDictVariable, "install_dict_keys_match_guard", _install),
            before(ConstDictVariable, "as_python_constant", _constant),
            around(ConstDictVariable, "is_python_constant", _is_constant),
            before(LIST_METHODS, "call_method", _extend),
            *(before(kind, "sq_inplace_concat_impl", _grow) for kind in LISTS_THAT_GROW),
            *(before(kind, REPR, _repr) for kind in DICTIONARIES),
            before(DictBuiltinVariable, "call_custom_dict_fromkeys", _fromkeys),
            after(GuardBuilder, "guard_on_dict_keys_and_order", _guard_of_order),
        ),
    )


def _install(_: Any, self: Any) -> None:
    """Asked for wherever all keys are read."""
    if self.source:
        InstructionTranslator.current_tx().output.guard_on_key_order.add(self.source)


def _constant(self: Any) -> None:
    """Asked for by functions of constants, as ``max(d, key=f)``."""
    if not vars(self).get(_IS_ASKED):
        _guard(self)


def _is_constant(original: Method, self: Any) -> bool:
    """Asked wherever a dictionary is handed on: it reads all, and uses nothing."""
    vars(self)[_IS_ASKED] = True
    try:
        return bool(original(self))
    finally:
        del vars(self)[_IS_ASKED]


def _extend(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> None:
    """``list(d)`` and ``[*d]`` extend a list."""
    if name == "extend" and args:
        _guard(args[0].realize())


def _grow(self: Any, tx: Any, other: Any) -> None:
    _guard(other.realize())


def _repr(self: Any, tx: Any) -> None:
    _guard(self)


def _fromkeys(tx: Any, user_cls: type, /, *args: Any, **kwargs: Any) -> None:
    for given in (*args, *kwargs.values()):
        _guard(given.realize())


def _guard(variable: Any) -> None:
    if isinstance(variable, ConstDictVariable) and variable.source:
        variable.install_dict_keys_match_guard()


def _guard_of_order(_: Any, self: Any, value: Any, guard: Any) -> None:
    if isinstance(value, OrderedDict) and len(value) > 1:
        order = _order(value)
        manager = self.get_guard_manager(guard).getattr_manager(
            attr=_OF_ORDER,
            source=f"{guard.name}.{_OF_ORDER}",
            example_value=value.move_to_end,
            guard_manager_enum=GuardManagerType.GUARD_MANAGER,
        )
        words = [f"{guard.name} is in the order in which it was"]
        manager.add_lambda_guard(lambda method: _order(method.__self__) == order, words, guard.user_stack)


def _order(dictionary: OrderedDict[Any, Any]) -> list[int]:
    """For each key, in the order in which they are given: where it stands in the dictionary underneath."""
    places = {id(key): place for place, key in enumerate(dict.__iter__(dictionary))}
    return [places[id(key)] for key in OrderedDict.__iter__(dictionary)]
