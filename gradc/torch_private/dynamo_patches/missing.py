"""What is looked for and not there, as in ``try: d[key]`` and ``except KeyError``: it may be there at the next call.

Dynamo guards what it finds. Where ``d[key]`` or ``obj.name`` raises and the program goes on, it guards nothing; nor that an
object has no attribute of its own by a name for which ``__getattr__`` was asked, as for each parameter of a module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._dynamo.exc import ObservedAttributeError
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables.builtin import GetAttrBuiltinVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.user_defined import DefaultDictVariable, UserDefinedObjectVariable

from gradc.torch_private.dynamo_names import LOADS_ATTRIBUTES
from gradc.torch_private.dynamo_patches.attributes import asked
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before


def guard_what_is_missing() -> Patch:
    """See the module's docstring."""
    return Patch(
        "guard_what_is_missing",
        "Dynamo guards no key and no attribute that was not there, though the program may have handled the error.",
        (
            before(ConstDictVariable, "getitem_const_raise_exception_if_absent", _subscript),
            before(DefaultDictVariable, "mp_subscript_impl", _subscript),
            around(GetAttrBuiltinVariable, "_call_getattr", _attribute),
            *(around(module, name, _attribute) for module, name in LOADS_ATTRIBUTES),
        ),
    )


def _subscript(self: Any, tx: Any, _key: Any) -> None:
    items = vars(self).get("_base_vt") or self  # of a defaultdict, before torch 2.15
    if _key not in items:
        items.install_dict_contains_guard(tx, [_key])


def _attribute(original: Method, *args: Any, **kwargs: Any) -> Any:
    tx, item, name = asked(*args)
    try:
        found = original(*args, **kwargs)
    except ObservedAttributeError:
        _guard(item, GuardBuilder.HASATTR, name)
        raise
    if isinstance(item, UserDefinedObjectVariable) and _is_left_to_getattr(tx, item, name):
        _guard(item, GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, name)
    return found


def _guard(item: Any, guard: Callable[..., None], name: str) -> None:
    if item.source and name:
        install_guard(item.source.make_guard(functools.partial(guard, attr=name)))


def _is_left_to_getattr(tx: Any, item: Any, name: str) -> bool:
    """True if ``__getattr__`` of the class is asked: neither the object nor its class has the name."""
    kind, effects = type(item.value), tx.output.side_effects
    if not hasattr(kind, "__getattr__") or any(name in vars(cls) for cls in kind.__mro__):
        return False
    if effects.has_pending_mutation_of_attr(item, name):
        return False
    try:
        return name not in object.__getattribute__(item.value, "__dict__")
    except AttributeError:
        return False  # all it has are slots, which the class has
