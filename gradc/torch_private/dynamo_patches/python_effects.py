"""Python whose effects Dynamo drops, or keeps in another order: ordered dictionaries, attributes of functions."""

from __future__ import annotations

import functools
import types
from typing import Any

from torch._dynamo import utils
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.dicts import DunderDictVariable, MappingProxyVariable
from torch._dynamo.variables.misc import WeakRefVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable, UserDefinedObjectVariable

from gradc.torch_private.dynamo_names import FUNCTIONS, ORDERED_DICT
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

_WITH_LAST = {"move_to_end": 1, "popitem": 0}  # methods of an OrderedDict: the place of ``last`` among the arguments


def keep_effects_of_python(is_ours: IsOurs) -> Patch:
    """Leave code alone with ``weakref.ref``, or that writes into a ``MappingProxyType``, and guard what is looked for."""

    def make_moved(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name in _WITH_LAST and is_ours(tx.output.compiler_fn):
                last = kwargs.get("last") or next(iter(args[_WITH_LAST[name] :]), None)
                if last is not None and not last.realize().is_python_constant():
                    end_graph("end of a dictionary that hangs on a value", "Dynamo takes the last one, whatever it is.", name)
            result = original(self, tx, name, args, kwargs)
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
        "Dynamo forgets the order of a dictionary, and that an attribute was not there yet.",
        (
            Replace(MappingProxyVariable, "call_method", make_proxy),
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
