"""The order of a dictionary's keys, wherever a program lists them, as ``[*d]`` and ``f(**d)`` do: another one is another call.

Dynamo guards the order where it iterates, and of an OrderedDict not the one in which it gives its keys: ``move_to_end`` changes
that one, and not the order of the dictionary underneath.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any

from torch._dynamo.guards import GuardBuilder, GuardManagerType
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.builtin import DictBuiltinVariable
from torch._dynamo.variables.dicts import ConstDictVariable

from gradc.torch_private.dynamo_names import DICTIONARIES, LIST_METHODS, LISTS_THAT_GROW, REPR
from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import Method, Patch, Replace

_IS_ASKED = "gradc_is_asked"  # of a variable, while Dynamo asks whether it is a constant
_OF_ORDER = "move_to_end"  # a method that no dictionary without an order has: by it the guard comes to the dictionary


def guard_the_order_of_keys() -> Patch:
    """See the module's docstring."""
    return Patch(
        "guard_the_order_of_keys",
        "Dynamo lists the keys of a dictionary in the order of the first call, also for one that has them in another.",
        (
            Replace(ConstDictVariable, "install_dict_keys_match_guard", _make_guard),
            Replace(ConstDictVariable, "as_python_constant", _make_constant),
            Replace(ConstDictVariable, "is_python_constant", _make_is_constant),
            Replace(LIST_METHODS, "call_method", _make_extend),
            *(Replace(kind, "sq_inplace_concat_impl", _make_grow) for kind in LISTS_THAT_GROW),
            *(Replace(kind, REPR, _make_repr) for kind in DICTIONARIES),
            Replace(DictBuiltinVariable, "call_custom_dict_fromkeys", _make_fromkeys),
            Replace(GuardBuilder, "guard_on_dict_keys_and_order", _make_guard_of_order),
        ),
    )


def _make_guard(original: Method) -> Method:
    """Asked for wherever all keys are read."""

    @functools.wraps(original)
    def install(self: Any) -> None:
        original(self)
        if self.source and is_compiling_for_gradc():
            InstructionTranslator.current_tx().output.guard_on_key_order.add(self.source)

    return install


def _make_constant(original: Method) -> Method:
    """Asked for by functions of constants, as ``max(d, key=f)``."""

    @functools.wraps(original)
    def constant(self: Any) -> Any:
        if not vars(self).get(_IS_ASKED):
            _guard(self)
        return original(self)

    return constant


def _make_is_constant(original: Method) -> Method:
    """Asked wherever a dictionary is handed on: it reads all, and uses nothing."""

    @functools.wraps(original)
    def is_constant(self: Any) -> bool:
        vars(self)[_IS_ASKED] = True
        try:
            return bool(original(self))
        finally:
            del vars(self)[_IS_ASKED]

    return is_constant


def _make_extend(original: Method) -> Method:
    """``list(d)`` and ``[*d]`` extend a list."""

    @functools.wraps(original)
    def call(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "extend" and args:
            _guard(args[0].realize())
        return original(self, tx, name, args, kwargs)

    return call


def _make_grow(original: Method) -> Method:
    @functools.wraps(original)
    def grow(self: Any, tx: Any, other: Any) -> Any:
        _guard(other.realize())
        return original(self, tx, other)

    return grow


def _make_repr(original: Method) -> Method:
    @functools.wraps(original)
    def text(self: Any, tx: Any) -> Any:
        _guard(self)
        return original(self, tx)

    return text


def _make_fromkeys(original: Method) -> Any:
    @functools.wraps(original)
    def fromkeys(tx: Any, user_cls: type, /, *args: Any, **kwargs: Any) -> Any:
        for given in (*args, *kwargs.values()):
            _guard(given.realize())
        return original(tx, user_cls, *args, **kwargs)

    return staticmethod(fromkeys)


def _guard(variable: Any) -> None:
    if isinstance(variable, ConstDictVariable) and variable.source and is_compiling_for_gradc():
        variable.install_dict_keys_match_guard()


def _make_guard_of_order(original: Method) -> Method:
    @functools.wraps(original)
    def guard_keys(self: Any, value: Any, guard: Any) -> None:
        original(self, value, guard)
        if is_compiling_for_gradc() and isinstance(value, OrderedDict) and len(value) > 1:
            order = _order(value)
            manager = self.get_guard_manager(guard).getattr_manager(
                attr=_OF_ORDER,
                source=f"{guard.name}.{_OF_ORDER}",
                example_value=value.move_to_end,
                guard_manager_enum=GuardManagerType.GUARD_MANAGER,
            )
            words = [f"{guard.name} is in the order in which it was"]
            manager.add_lambda_guard(lambda method: _order(method.__self__) == order, words, guard.user_stack)

    return guard_keys


def _order(dictionary: OrderedDict[Any, Any]) -> list[int]:
    """For each key, in the order in which they are given: where it stands in the dictionary underneath."""
    places = {id(key): place for place, key in enumerate(dict.__iter__(dictionary))}
    return [places[id(key)] for key in OrderedDict.__iter__(dictionary)]
