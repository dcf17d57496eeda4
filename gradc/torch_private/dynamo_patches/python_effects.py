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
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around, before, instead

_WITH_LAST = {"move_to_end": 1, "popitem": 0}  # methods of an OrderedDict: the place of ``last`` among the arguments


def keep_effects_of_python() -> Patch:
    """Leave code alone with ``weakref.ref``, or that writes into a ``MappingProxyType``, and guard what is looked for."""
    return Patch(
        "keep_effects_of_python",
        "Dynamo forgets the order of a dictionary, and that an attribute was not there yet.",
        (
            before(MappingProxyVariable, "call_method", _proxy),
            around(ORDERED_DICT, "call_method", _moved),
            *(before(kind, "call_obj_hasattr", _hasattr) for kind in FUNCTIONS),
            after(UserDefinedClassVariable, "call_function", _reference),
            before(DunderDictVariable, "__init__", _dict),
        ),
    )


def _moved(original: Method, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name in _WITH_LAST:
        last = kwargs.get("last") or next(iter(args[_WITH_LAST[name] :]), None)
        if last is not None and not last.realize().is_python_constant():
            end_graph("end of a dictionary that hangs on a value", "Dynamo takes the last one, whatever it is.", name)
    result = original(self, tx, name, args, kwargs)
    if name == "move_to_end":
        (getattr(self, "_base_vt", None) or self).should_reconstruct_all = True
    return result


def _hasattr(self: Any, tx: Any, name: str) -> None:
    if self.source:
        install_guard(self.source.make_guard(functools.partial(GuardBuilder.HASATTR, attr=name)))


def _reference(result: Any, self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(result, WeakRefVariable) and not result.source:
        end_graph("weakref.ref", "A graph, and what goes on behind it, keep what they refer to.", skip_frame=True)
    return result


def _dict(self: Any, vt: Any, tx: Any, **kwargs: Any) -> None:
    if vt.source and isinstance(vt, UserDefinedObjectVariable):
        install_guard(AttrSource(vt.source, "__dict__").make_guard(GuardBuilder.DICT_KEYS_MATCH))


def _proxy(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> None:
    if not hasattr(types.MappingProxyType, name):
        end_graph("write into a mapping proxy", "Python raises.", skip_frame=True)


def warn_of_nothing() -> Patch:
    """Leave out Dynamo's warnings of what it cannot trace: eager gives none, and the end of the graph is counted."""
    from torch._dynamo import debug_utils  # 0.6 s: when something is compiled, and torch imports it; it keeps a name of its own

    return Patch(
        "warn_of_nothing",
        "Dynamo warns where it meets builtin functions: as errors, such warnings would end a program that eager runs.",
        (instead(utils, "warn_once", _say_nothing), instead(debug_utils, "warn_once", _say_nothing)),
    )


def _say_nothing(*_: Any, **__: Any) -> None: ...
