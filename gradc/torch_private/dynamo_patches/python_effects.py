"""Python whose effects Dynamo drops, or keeps in another order: caches, ordered dictionaries, attributes of functions."""

from __future__ import annotations

import functools
import types
from typing import Any

from torch._dynamo import utils
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import DunderDictVariable, MappingProxyVariable
from torch._dynamo.variables.functions import WrapperUserFunctionVariable
from torch._dynamo.variables.misc import WeakRefVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable, UserDefinedObjectVariable

from gradc.torch_private.dynamo_names import FUNCTIONS, ORDERED_DICT
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

_PLAIN = (bool, str, "bool", "str")  # as transformers asks what is installed, in every forward


def keep_effects_of_python(is_ours: IsOurs) -> Patch:
    """End the graph at a call of ``functools.lru_cache``'s, leave code with ``weakref.ref`` alone, guard what is looked for.

    Code that writes into a ``MappingProxyType`` is left alone, too.

    A cached function that says it returns a bool or a str is asked while tracing, if its arguments are constants and its cache
    keeps everything: later calls would have been given the same. What torch caches is a matter of torch's.
    """

    def make_cached(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            cached = self.wrapper_obj
            if not _is_cache_of_users(cached) or not is_ours(tx.output.compiler_fn):
                return original(self, tx, args, kwargs)
            known = _known(cached, [*self.self_args(), *args], kwargs)
            return known if known is not None else end_graph("functools.lru_cache", "A cache remembers, and counts.")

        return call

    def make_moved(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            result = original(self, tx, name, *args, **kwargs)
            if name == "move_to_end" and is_ours(tx.output.compiler_fn):
                (getattr(self, "_base_vt", None) or self).should_reconstruct_all = True
            return result

        return call

    def make_hasattr(original: Method) -> Method:
        @functools.wraps(original)
        def ask(self: Any, tx: Any, name: str) -> Any:
            if self.source and is_ours(tx.output.compiler_fn):
                install_guard(self.source.make_guard(functools.partial(GuardBuilder.HASATTR, attr=name)))
            return original(self, tx, name)

        return ask

    def make_reference(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, tx, *args, **kwargs)
            if isinstance(result, WeakRefVariable) and not result.source and is_ours(tx.output.compiler_fn):
                end_graph("weakref.ref", "A graph, and what goes on behind it, keep what they refer to.", skip_frame=True)
            return result

        return call

    def make_dict(original: Method) -> Method:
        @functools.wraps(original)
        def init(self: Any, vt: Any, tx: Any, **kwargs: Any) -> None:
            if vt.source and isinstance(vt, UserDefinedObjectVariable) and is_ours(tx.output.compiler_fn):
                install_guard(AttrSource(vt.source, "__dict__").make_guard(GuardBuilder.DICT_KEYS_MATCH))
            original(self, vt, tx, **kwargs)

        return init

    def make_proxy(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            if not hasattr(types.MappingProxyType, name) and is_ours(tx.output.compiler_fn):
                end_graph("write into a mapping proxy", "Python raises.", skip_frame=True)
            return original(self, tx, name, *args, **kwargs)

        return call

    return Patch(
        "keep_effects_of_python",
        "Dynamo looks through caches, and forgets the order of a dictionary, and that an attribute was not there yet.",
        (
            Replace(MappingProxyVariable, "call_method", make_proxy),
            Replace(WrapperUserFunctionVariable, "call_function", make_cached),
            Replace(ORDERED_DICT, "call_method", make_moved),
            *(Replace(kind, "call_obj_hasattr", make_hasattr) for kind in FUNCTIONS),
            Replace(UserDefinedClassVariable, "call_function", make_reference),
            Replace(DunderDictVariable, "__init__", make_dict),
        ),
    )


def warn_of_nothing() -> Patch:
    """Leave out Dynamo's warnings of what it cannot trace: eager gives none, and the end of the graph is counted."""
    from torch._dynamo import debug_utils  # 0.6 s: when something is compiled, and torch imports it; it keeps a name of its own

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def warn(*args: Any, **kwargs: Any) -> None:
            if not is_compiling_for_gradc():
                original(*args, **kwargs)

        return warn

    return Patch(
        "warn_of_nothing",
        "Dynamo warns where it meets builtin functions: as errors, such warnings would end a program that eager runs.",
        (Replace(utils, "warn_once", make), Replace(debug_utils, "warn_once", make)),
    )


def _is_cache_of_users(function: Any) -> bool:
    module = getattr(getattr(function, "__wrapped__", None), "__module__", None) or ""
    return hasattr(function, "cache_info") and module.split(".")[0] != "torch"


def _known(cached: Any, args: list[VariableTracker], kwargs: dict[str, VariableTracker]) -> VariableTracker | None:
    """What the cache has, or will have from now on; None where that is not sure to be a constant that is never thrown out."""
    info = cached.cache_info()
    is_kept = info.maxsize is None or info.currsize < info.maxsize
    is_plain = cached.__wrapped__.__annotations__.get("return") in _PLAIN
    if not (is_kept and is_plain and all(isinstance(value.realize(), ConstantVariable) for value in [*args, *kwargs.values()])):
        return None
    constants = {name: value.as_python_constant() for name, value in kwargs.items()}
    return ConstantVariable.create(cached(*(value.as_python_constant() for value in args), **constants))
