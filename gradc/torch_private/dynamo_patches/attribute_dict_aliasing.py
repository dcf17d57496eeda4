"""The dictionary of an object's attributes, met as ``obj.v`` and as ``d["v"]`` where ``d = obj.__dict__`` was kept: two names.

Dynamo has a variable for the object and one for the dictionary, and notes what is written at the one that it was written by. To
the other it tells what was there before the graph, and behind the graph both are written back, each as if it were alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import SideEffectsProxyDict
from torch._dynamo.variables.hashable import HashableTracker
from torch._dynamo.variables.misc import DeletedVariable, NewGlobalVariable, PythonModuleVariable
from torch._dynamo.variables.nn_module import UnspecializedNNModuleVariable

from gradc.torch_private.dynamo_patches.ends import DICTIONARY_OF_ATTRIBUTES, end_graph
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before, instead

_NAMESPACES = "gradc_namespaces"  # of what a graph is made in
_OF_MODULES = ("__builtins__", "__spec__")  # keys that the dictionary of a module has, or one that code was executed in


class _Namespaces:
    """What a graph met: variables of dictionaries, and the variables of whatever has a dictionary for its attributes.

    Addresses are keys: Dynamo keeps alive what it has met.
    """

    def __init__(self) -> None:
        self.dictionaries: dict[int, tuple[Any, dict[Any, Any]]] = {}  # of the variable -> it, and what it stands for
        self.of_owner: dict[int, tuple[Any, dict[Any, Any]]] = {}  # of the variable -> it, and its dictionary
        # of the dictionary -> of the object -> its variable, and the dictionary
        self.owners: dict[int, dict[int, tuple[Any, dict[Any, Any]]]] = {}
        self.asked_for: dict[int, dict[Any, Any]] = {}  # of the dictionary, which an owner was asked for -> it


def write_into_namespaces_by_one_name() -> Patch:
    """End the graph between a write by one of the two names and what is met by the other; and before a module's is written."""
    return Patch(
        "write_into_namespaces_by_one_name",
        "What is written as an attribute, Dynamo does not find in the dictionary that holds it; nor the other way round.",
        (
            before(SideEffects, "store_attr", _store),
            before(SideEffects, "store_instance_dict_attr", _set_again),
            before(SideEffects, "mutation", _mutation),
            before(SideEffects, "track_mutable", _track_dictionary),
            before(SideEffects, "track_object_existing", _track_owner),
            instead(SideEffectsProxyDict, "__iter__", _iterate),
        ),
    )


def namespace_of(item: Any, output: Any) -> dict[str, Any] | None:
    """The dictionary that an attribute of ``item`` stands in: of a module, an object, or of the globals of what is compiled."""
    if isinstance(item, NewGlobalVariable):
        return output.global_scope
    if isinstance(item, PythonModuleVariable):
        return vars(item.value)
    return _of(output).of_owner.get(id(item), (None, None))[1]


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The dictionary that the attributes of ``value`` stand in, if Python lets write into it."""
    try:
        dictionary = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return dictionary if isinstance(dictionary, dict) else None


def meet(effects: Any, variable: Any, owner: Any, dictionary: dict[Any, Any]) -> None:
    """Note that a graph reads ``dictionary`` by ``variable``, which stands for its ``owner``: behind it a write ends the graph.

    End it here if the dictionary was written already, by itself or by another owner.
    """
    met, known = _of(effects.output_graph_weakref()), effects.id_to_variable.get(id(dictionary))
    owners = met.owners.setdefault(id(dictionary), {})
    is_written = any(effects.store_attr_mutations.get(one) for key, (one, _) in owners.items() if key != id(owner))
    if is_written or (known is not None and effects.is_modified(known)):
        _end_graph(str(variable.source))
    owners.setdefault(id(owner), (variable, dictionary))


def meet_dictionary(effects: Any, item: Any, dictionary: dict[Any, Any]) -> None:
    """Note that ``item`` was asked for its ``dictionary``; end the graph if there is a variable of it: they would be two."""
    if id(dictionary) in effects.id_to_variable:
        _end_graph(str(item.source))
    _of(effects.output_graph_weakref()).asked_for[id(dictionary)] = dictionary


def _store(self: Any, item: Any, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
    output = self.output_graph_weakref()
    dictionary = namespace_of(item, output)
    is_replaced = name == "__dict__" and (item.source or value.source)
    is_lost = isinstance(item, UnspecializedNNModuleVariable) and isinstance(value, DeletedVariable)
    is_met_twice = id(dictionary) in self.id_to_variable or len(_of(output).owners.get(id(dictionary), ())) > 1
    if is_replaced or is_lost or is_met_twice or _is_set_again(self, item, name, value):
        _end_graph(name)


def _set_again(self: Any, item: Any, name: str, value: Any) -> None:
    if _is_set_again(self, item, name, value):
        _end_graph(name)


def _is_set_again(effects: Any, item: Any, name: str, value: Any) -> bool:
    """One that was deleted stands behind all others then; Dynamo would write it behind the graph, where it stood."""
    is_deleted = isinstance(effects.store_attr_mutations.get(item, {}).get(name), DeletedVariable)
    return bool(item.source) and is_deleted and not isinstance(value, DeletedVariable)


def _mutation(self: Any, var: Any, *args: Any, **kwargs: Any) -> None:
    if id(var) in (met := _of(self.output_graph_weakref())).dictionaries:
        _, dictionary = met.dictionaries[id(var)]
        if _is_of_a_module(dictionary) or id(dictionary) in met.owners:
            _end_graph(str(var.source))


def _track_dictionary(self: Any, item: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
    if type(item) is dict:
        _end_if_written(self, item, variable)
        met = _of(self.output_graph_weakref())
        if id(item) in met.asked_for:
            _end_graph(str(variable.source))
        met.dictionaries[id(variable)] = variable, item


def _track_owner(self: Any, item: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
    if type(item) in weakref.ProxyTypes:
        end_graph("weakref.proxy", "It is another name of the object.")
    if (dictionary := attributes_of(item)) is not None:
        if isinstance(item, dict):
            _end_if_written(self, item, variable)
        meet(self, variable, item, dictionary)
        _of(self.output_graph_weakref()).of_owner[id(variable)] = variable, dictionary


def _iterate(self: Any) -> Iterator[Any]:
    """What an object was given in a graph comes behind what it had."""
    written = self.side_effects_table()
    names = [*self.item_dict, *(name for name in written if name not in self.item_dict)]
    kept = (name for name in names if not isinstance(written.get(name), DeletedVariable))
    return (HashableTracker(ConstantVariable.create(name)) for name in kept)


def _end_if_written(effects: Any, item: Any, variable: Any) -> None:
    """End the graph if an attribute was written that stands in the dictionary ``item``, which is met now."""
    output = effects.output_graph_weakref()
    if any(namespace_of(other, output) is item for other, written in effects.store_attr_mutations.items() if written):
        _end_graph(str(variable.source))


def _of(output: Any) -> _Namespaces:
    return vars(output).setdefault(_NAMESPACES, _Namespaces())


def _is_of_a_module(dictionary: dict[Any, Any]) -> bool:
    return any(key in dictionary for key in _OF_MODULES)


def _end_graph(name: str) -> None:
    end_graph(DICTIONARY_OF_ATTRIBUTES, "What it holds was written by another name of it, or is read by another.", name)
