"""Where in the imported version of Dynamo the things are that gradc replaces, for those that moved between versions.

One entry an idea: who has it, and under which name. The newest version stands in the body, older ones behind ``if``.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo import exc, symbolic_convert
from torch._dynamo.variables import base, builtin, dicts, functions, lists, object_protocol, sets, user_defined
from torch._dynamo.variables.hashable import HashableTracker

from gradc.torch_private.version import TORCH

IS_BEFORE_2_14 = TORCH < (2, 14)
IS_BEFORE_2_15 = TORCH < (2, 15)

# ``x.name``, of every variable: a method of the variable.
GETATTR = "var_getattr" if IS_BEFORE_2_14 else "tp_getattro_impl"

# What loads an attribute for the bytecode: it called getattr(), and since 2.14 asks, and falls back to Python, by itself.
LOADS_ATTRIBUTES: tuple[tuple[Any, str], ...] = () if IS_BEFORE_2_14 else ((symbolic_convert, "generic_getattr"),)

# Of a stack of exceptions: the one that has just been raised.
RAISED_EXCEPTION = "get_current_exception" if IS_BEFORE_2_14 else "get_raised_exception"

# ``bool(x)``, of every variable.
BOOL = "bool_impl" if IS_BEFORE_2_14 else "nb_bool_impl"

# ``repr(x)``, of every variable.
REPR = "repr_impl" if IS_BEFORE_2_14 else "tp_repr_impl"

# ``item in container``: a function, in the modules that ask it for the bytecode, and since 2.14 for operator.contains.
CONTAINS = "generic_contains" if IS_BEFORE_2_14 else "pysequence_contains"
CONTAINS_ASKERS = (symbolic_convert,) if IS_BEFORE_2_14 else (symbolic_convert, builtin)

# Whether two objects are one key of a dictionary: asked of the variable, since 2.14 of what makes a key of it.
KEYS_ARE_EQUAL: tuple[Any, str] = (
    (user_defined.UserDefinedObjectVariable, "is_python_equal") if IS_BEFORE_2_14 else (HashableTracker, "__eq__")
)

# collections.OrderedDict: first an object with a dictionary inside, since 2.14 a dictionary.
ORDERED_DICT: Any = user_defined.OrderedDictVariable if IS_BEFORE_2_14 else getattr(dicts, "OrderedDictVariable", None)

# What set and frozenset have in common: frozenset was a kind of set.
ANY_SET: Any = sets.SetVariable if IS_BEFORE_2_15 else getattr(sets, "BaseSetVariable", None)

# Functions of the user's and methods, those of caches apart: a method was a kind of function.
FUNCTIONS: tuple[Any, ...] = (functions.UserFunctionVariable,)
CACHES: tuple[Any, ...] = (functions.WrapperUserFunctionVariable,)
if not IS_BEFORE_2_15:
    FUNCTIONS += (functions.UserMethodVariable,)
    CACHES += (functions.WrapperUserMethodVariable,)

# The methods that change a list.
LIST_METHODS: Any = lists.CommonListMethodsVariable if IS_BEFORE_2_15 else lists.BaseListVariable

# ``list += other``: extends the list by itself since 2.15, and not by its method.
LISTS_THAT_GROW: tuple[Any, ...] = () if IS_BEFORE_2_15 else (lists.ListVariable,)

# Dictionaries that have a repr of their own.
DICTIONARIES: tuple[Any, ...] = (dicts.ConstDictVariable,) if IS_BEFORE_2_14 else (dicts.ConstDictVariable, ORDERED_DICT)

# A call with fake tensors that raised: an error of Dynamo's, since 2.14 an exception that the traced program may catch.
FAKE_CALL_RAISED: Any = getattr(exc, "FakeTensorObservedException", ())

# A call of a function of the user's with arguments that it does not take: since 2.14 an exception that the program may catch.
ARGUMENTS_DO_NOT_FIT: Any = getattr(functions, "BindArgsTypeError", ())

# What Dynamo keeps of the special methods of a class, for each class that it has met.
SLOTS_OF_CLASSES: tuple[tuple[Any, str], ...] = ((object_protocol, "_get_cached_slots"),)
if not IS_BEFORE_2_14:
    SLOTS_OF_CLASSES += ((base, "_tp_type"), (base, "_compute_slotdefs"))
