"""The dictionary of an object's attributes, met as ``obj.v`` and as ``d["v"]`` where ``d = obj.__dict__`` was kept: two names.

Dynamo has a variable for the object and one for the dictionary, and notes what is written at the one that it was written by. To
the other it tells what was there before the graph, and behind the graph both are written back, each as if it were alone.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables.misc import NewGlobalVariable, PythonModuleVariable

from gradc.torch_private.dynamo_patches.ends import DICTIONARY_OF_ATTRIBUTES, end_graph
from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import Method, Patch, Replace

_NAMESPACES = "gradc_namespaces"  # of what a graph is made in
_OF_MODULES = ("__builtins__", "__spec__")  # keys that the dictionary of a module has, or one that code was executed in


class _Namespaces:
    """What a graph met: variables of dictionaries, and the variables of whatever has a dictionary for its attributes.

    Addresses are keys: Dynamo keeps alive what it has met.
    """

    def __init__(self) -> None:
        self.dictionaries: dict[int, tuple[Any, dict[Any, Any]]] = {}  # of the variable -> it, and what it stands for
        self.of_owner: dict[int, tuple[Any, dict[Any, Any]]] = {}  # of the variable -> it, and its dictionary
        self.owners: dict[int, dict[int, Any]] = {}  # of the dictionary -> of the object -> its variable


def write_into_namespaces_by_one_name() -> Patch:
    """End the graph between a write by one of the two names and what is met by the other; and before a module's is written."""
    return Patch(
        "write_into_namespaces_by_one_name",
        "What is written as an attribute, Dynamo does not find in the dictionary that holds it; nor the other way round.",
        (
            Replace(SideEffects, "store_attr", _make_store),
            Replace(SideEffects, "mutation", _make_mutation),
            Replace(SideEffects, "track_mutable", _make_track_dictionary),
            Replace(SideEffects, "track_object_existing", _make_track_owner),
        ),
    )


def namespace_of(item: Any, output: Any) -> dict[str, Any] | None:
    """The dictionary that an attribute of ``item`` stands in: of a module, an object, or of the globals of what is compiled."""
    if isinstance(item, NewGlobalVariable):
        return output.global_scope
    if isinstance(item, PythonModuleVariable):
        return vars(item.value)
    return _of(output).of_owner.get(id(item), (None, None))[1]


def _make_store(original: Method) -> Method:
    @functools.wraps(original)
    def store_attr(self: Any, item: Any, name: str, *args: Any, **kwargs: Any) -> None:
        if is_compiling_for_gradc():
            output = self.output_graph_weakref()
            dictionary = namespace_of(item, output)
            if id(dictionary) in self.id_to_variable or len(_of(output).owners.get(id(dictionary), ())) > 1:
                _end_graph(name)
        original(self, item, name, *args, **kwargs)

    return store_attr


def _make_mutation(original: Method) -> Method:
    @functools.wraps(original)
    def mutation(self: Any, var: Any, *args: Any, **kwargs: Any) -> None:
        if is_compiling_for_gradc() and id(var) in (met := _of(self.output_graph_weakref())).dictionaries:
            _, dictionary = met.dictionaries[id(var)]
            if _is_of_a_module(dictionary) or id(dictionary) in met.owners:
                _end_graph(str(var.source))
        original(self, var, *args, **kwargs)

    return mutation


def _make_track_dictionary(original: Method) -> Method:
    @functools.wraps(original)
    def track(self: Any, item: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        if type(item) is dict and is_compiling_for_gradc():
            output = self.output_graph_weakref()
            if any(namespace_of(other, output) is item for other, written in self.store_attr_mutations.items() if written):
                _end_graph(str(variable.source))
            _of(output).dictionaries[id(variable)] = variable, item
        return original(self, item, variable, *args, **kwargs)

    return track


def _make_track_owner(original: Method) -> Method:
    @functools.wraps(original)
    def track(self: Any, item: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        if type(item) in weakref.ProxyTypes and is_compiling_for_gradc():
            end_graph("weakref.proxy", "It is another name of the object.")
        if is_compiling_for_gradc() and (dictionary := _dictionary_of(item)) is not None:
            met, known = _of(self.output_graph_weakref()), self.id_to_variable.get(id(dictionary))
            owners = met.owners.setdefault(id(dictionary), {})
            is_written = any(self.store_attr_mutations.get(one) for key, one in owners.items() if key != id(item))
            if is_written or (known is not None and self.is_modified(known)):
                _end_graph(str(variable.source))
            owners[id(item)] = variable
            met.of_owner[id(variable)] = variable, dictionary
        return original(self, item, variable, *args, **kwargs)

    return track


def _of(output: Any) -> _Namespaces:
    return vars(output).setdefault(_NAMESPACES, _Namespaces())


def _dictionary_of(value: Any) -> dict[str, Any] | None:
    try:
        dictionary = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return dictionary if type(dictionary) is dict else None


def _is_of_a_module(dictionary: dict[Any, Any]) -> bool:
    return any(key in dictionary for key in _OF_MODULES)


def _end_graph(name: str) -> None:
    end_graph(DICTIONARY_OF_ATTRIBUTES, "What it holds was written by another name of it, or is read by another.", name)
