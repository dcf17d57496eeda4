"""``getattr`` and ``hasattr`` of what Dynamo takes for a constant: functions and partials have attributes, and dictionaries.

Dynamo has no variable for the dictionary of such an object. So what is written into it by a name of its own, as
``d["v"] = 1`` behind ``d = vars(f)``, is not found as ``f.v``; nor is what is written into ``f.__kwdefaults__`` or a
partial's ``keywords`` when it is called. Here each of them is met as a name of its dictionary: see ``written_namespaces``.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections import OrderedDict
from typing import Any

from torch._dynamo.exc import Unsupported, raise_observed_exception
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.builtin import BuiltinVariable, GetAttrBuiltinVariable, HasAttrBuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.functions import FunctoolsPartialVariable, MemberDescriptorVariable, UserFunctionVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.dynamo_names import CACHES, FUNCTIONS, GETATTR, LOADS_ATTRIBUTES, ORDERED_DICT
from gradc.torch_private.dynamo_patches.attribute_dict_aliasing import attributes_of, meet, meet_dictionary
from gradc.torch_private.dynamo_patches.ends import PREFIX, end_graph
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around, before

_OF_PARTIALS = {*vars(functools.partial), *vars(object)} - {"__dict__"}
_VALUES = ("vt", "im_func", "wrapper_obj", "fn", "value")  # where a variable keeps what it stands for
_KEYWORDS = "gradc_keywords"  # of partials, that a graph met: of the variable -> it


class _Enum(enum.Enum):
    MEMBER = 1


_OF_MEMBERS = {*vars(_Enum.MEMBER)}


class _Ended(Exception):
    """Carries an end of gradc's past Dynamo, which would ask Python where an attribute of a constant cannot be traced."""

    def __init__(self, end: Unsupported) -> None:
        super().__init__()
        self.end = end


def ask_for_attributes_as_python_does() -> Patch:
    """End the graph at attributes that a partial was given, and where a dictionary of a function or partial is written."""
    return Patch(
        "ask_for_attributes_as_python_does",
        "Dynamo tells the attributes of a new partial, and those that a function had before the graph.",
        (
            around(GetAttrBuiltinVariable, "_call_getattr", _inner),
            around(GetAttrBuiltinVariable, "call_function", _outer),
            *(around(module, name, _inner) for module, name in LOADS_ATTRIBUTES),
            *(around(InstructionTranslatorBase, "_load_attr", _outer) for _ in LOADS_ATTRIBUTES),
            around(BuiltinVariable, "has_constant_handler", _constant),
            before(FunctoolsPartialVariable, GETATTR, _partial),
            before(FunctoolsPartialVariable, "call_obj_hasattr", _partial),
            *(before(kind, GETATTR, _asked) for kind in FUNCTIONS),
            before(BuiltinVariable, "call_vars", _vars),
            before(HasAttrBuiltinVariable, "call_function", _hasattr),
            *(around(kind, "call_obj_hasattr", _wrapper) for kind in CACHES),
            before(UserFunctionVariable, "bind_args", _call),
            after(VariableBuilder, "_wrap", _wrap),
            around(MemberDescriptorVariable, "tp_descr_get_impl", _slot),
            before(ConstDictVariable, "reconstruct", _reconstruct),
            *(around(kind, GETATTR, _of_wrapper) for kind in CACHES),
        ),
    )


def _inner(original: Method, *args: Any, **kwargs: Any) -> Any:
    try:
        tx, item, name = asked(*args)
        _ask(tx, item, name)
        result = original(*args, **kwargs)
        if name == "keywords" and isinstance(item, FunctoolsPartialVariable):
            vars(tx.output).setdefault(_KEYWORDS, {})[id(result)] = result
        return result
    except Unsupported as end:
        if _is_ours(end):
            raise _Ended(end) from None
        raise


def asked(first: Any, second: Any, third: Any, *_: Any) -> tuple[Any, Any, str]:
    """Who asks whom for what: of ``(tx, item, name)``, and of ``(self, tx, [item, name])``."""
    if isinstance(third, str):
        return first, second, third
    return second, third[0].realize(), third[1].as_python_constant() if third[1].is_python_constant() else ""


def _outer(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(self, *args, **kwargs)
    except _Ended as ended:
        raise ended.end from None


def _constant(original: Method, *args: Any, **kwargs: Any) -> bool:
    """Asked where a function of constants could not be traced, as ``d |= {...}`` of a dictionary of constants."""
    return not _is_ours(sys.exc_info()[1]) and original(*args, **kwargs)


def _is_ours(error: BaseException | None) -> bool:
    return isinstance(error, Unsupported) and (error.gb_type or "").startswith(PREFIX)


def _partial(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> None:
    if self.source and name not in _OF_PARTIALS:
        end_graph("attribute of a partial", "Dynamo knows those alone that every partial has.", name)


def _asked(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> None:
    _ask(tx, self, name)


def _vars(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    if args:
        _ask(tx, args[0].realize(), "__dict__")


def _hasattr(self: Any, tx: Any, args: Any, kwargs: Any) -> None:
    if len(args) == 2 and args[1].is_python_constant():
        _ask(tx, args[0].realize(), args[1].as_python_constant())


def _wrapper(original: Method, self: Any, tx: Any, name: str) -> Any:
    """Dynamo asks the function inside, as that in a ``functools.lru_cache``."""
    if not self.source:
        return original(self, tx, name)
    install_guard(self.source.make_guard(functools.partial(GuardBuilder.HASATTR, attr=name)))
    return ConstantVariable.create(hasattr(_value_of(self), name))


def _call(self: Any, parent: Any, *args: Any, **kwargs: Any) -> None:
    if defaults := getattr(self.fn, "__kwdefaults__", None):
        meet(parent.output.side_effects, self, self.fn, defaults)


def _wrap(variable: Any, self: Any, value: Any) -> Any:
    if isinstance(variable, FunctoolsPartialVariable):
        meet(self.tx.output.side_effects, variable, value, value.keywords)
    return variable


def _reconstruct(self: Any, codegen: Any) -> None:
    if id(self) in vars(codegen.tx.output).get(_KEYWORDS, ()):
        end_graph("keywords of a partial", "Behind a graph Dynamo has a copy of them, of a partial that is made within.")


def _slot(original: Method, self: Any, tx: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
    """``C.slot.__get__(obj)`` is ``obj.slot``."""
    effects, name, obj = tx.output.side_effects, self.descriptor.__name__, obj.realize()
    if effects.has_pending_mutation_of_attr(obj, name):
        return effects.load_attr(obj, name)
    return original(self, tx, obj, *args, **kwargs)


def _of_wrapper(original: Method, self: Any, tx: Any, name: str) -> Any:
    """A function around another, as of ``gradc.compile``, has attributes of its own; Dynamo asks the one inside."""
    if not self.source or not isinstance(self.wrapper_obj, types.FunctionType) or name == self.attr_to_trace:
        return original(self, tx, name)
    if not _wrapper(original, self, tx, name).as_python_constant():
        raise_observed_exception(AttributeError, tx, args=[f"'function' object has no attribute '{name}'"])
    return VariableTracker.build(tx, getattr(self.wrapper_obj, name), AttrSource(self.source, name))


def _value_of(item: Any) -> Any:
    kept = vars(item)
    value = next((kept[kind] for kind in _VALUES if kind in kept), None)
    return _value_of(value) if isinstance(value, VariableTracker) else value


def _ask(tx: Any, item: Any, name: str) -> None:
    """An attribute of ``item`` is asked for: of what is no object to Dynamo, since those it tracks, the dictionary is met."""
    value = _value_of(item)
    if isinstance(value, enum.Enum) and not item.source and name not in _OF_MEMBERS and not hasattr(type(value), name):
        end_graph("attribute of a member of an enum", "Of one that was looked up, Dynamo takes it for a constant.", name)
    if isinstance(item, FunctoolsPartialVariable) and item.source and name == "__dict__":
        end_graph("attribute of a partial", "Dynamo knows those alone that every partial has.", name)
    if type(value) is types.FunctionType and isinstance(item, TorchInGraphFunctionVariable) and not name.startswith("__"):
        end_graph("attribute of a function of torch", "Dynamo takes it for a constant.", name)
    is_ordered = value is None and isinstance(item, ORDERED_DICT)  # since torch 2.14; before, it was an object
    if is_ordered and item.source and (name == "__dict__" or not hasattr(OrderedDict, name)):
        end_graph("attribute of an OrderedDict", "Dynamo has a variable for its items alone.", name)
    value = value.__func__ if type(value) is types.MethodType else value
    if (dictionary := attributes_of(value)) is not None:
        meet(tx.output.side_effects, item, value, dictionary)
        if name == "__dict__":
            meet_dictionary(tx.output.side_effects, item, dictionary)
