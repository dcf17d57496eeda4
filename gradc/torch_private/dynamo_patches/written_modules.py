"""A global has several names: ``X`` in its module, ``module.X`` in others, ``globals()["X"]``. What one writes, all read.

Dynamo notes what is written at the name that it was written by, and finds it there again; the other names tell what was there
before the graph. Here the attribute of a module and the global that are one stand for each other. A dictionary that is a
module's is not taken into this: a graph ends before it is written into, and between a write by another name and a look at it.
"""

from __future__ import annotations

import dis
import functools
from typing import Any

from torch._dynamo.exc import raise_observed_exception
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.symbolic_convert import InliningInstructionTranslator, InstructionTranslatorBase
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.misc import DeletedVariable, NewGlobalVariable, PythonModuleVariable

from gradc.torch_private.dynamo_names import GETATTR
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.operators import dispatch_tables
from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import Method, Patch, Replace

_NAMES = (NewGlobalVariable, PythonModuleVariable)
_ARE_WRITTEN = "gradc_modules_are_written"  # of what a graph is made in, so that all others are not searched
_DICTIONARIES = "gradc_dictionaries_of_modules"
_OF_MODULES = ("__builtins__", "__spec__")  # keys that the dictionary of a module has, or one that code was executed in


def write_into_modules_by_all_names() -> Patch:
    """What compiled code writes into a module, or deletes there, it reads at once by every name of it."""
    return Patch(
        "write_into_modules_by_all_names",
        "What is written as a module's attribute, Dynamo does not find as a global of that module; nor the other way round.",
        (
            Replace(SideEffects, "store_attr", _make_store),
            Replace(SideEffects, "track_mutable", _make_track),
            Replace(SideEffects, "mutation", _make_mutation),
            Replace(InstructionTranslatorBase, "_load_global", _make_load),
            Replace(InliningInstructionTranslator, "_load_global", _make_load),
            Replace(PythonModuleVariable, GETATTR, _make_getattr),
            Replace(PythonModuleVariable, "call_obj_hasattr", _make_hasattr),
            *(Replace(table, dis.opmap["IMPORT_NAME"], _make_import) for table in dispatch_tables()),
        ),
    )


def _make_store(original: Method) -> Method:
    @functools.wraps(original)
    def store_attr(self: Any, item: Any, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(item, _NAMES) and is_compiling_for_gradc():
            output = self.output_graph_weakref()
            vars(output)[_ARE_WRITTEN] = True
            namespace = _namespace_of(item, output)
            if id(namespace) in self.id_to_variable or isinstance(value, DeletedVariable):
                _end_graph(name)
            first = _written(output, namespace, name)
            item = item if first is None or type(first) is type(item) else first
        original(self, item, name, value, *args, **kwargs)

    return store_attr


def _make_track(original: Method) -> Method:
    @functools.wraps(original)
    def track(self: Any, item: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        if type(item) is dict and is_compiling_for_gradc() and _is_of_a_module(item):
            output = self.output_graph_weakref()
            if any(_namespace_of(other, output) is item for other in self.store_attr_mutations):
                _end_graph("globals()")
            vars(output).setdefault(_DICTIONARIES, {})[id(variable)] = variable
        return original(self, item, variable, *args, **kwargs)

    return track


def _make_mutation(original: Method) -> Method:
    @functools.wraps(original)
    def mutation(self: Any, var: Any, *args: Any, **kwargs: Any) -> None:
        if id(var) in vars(self.output_graph_weakref()).get(_DICTIONARIES, ()):
            _end_graph("globals()")
        original(self, var, *args, **kwargs)

    return mutation


def _make_load(original: Method) -> Method:
    @functools.wraps(original)
    def load_global(self: Any, inst: Any) -> None:
        item = _written(self.output, self.f_globals, inst.argval)
        if isinstance(item, PythonModuleVariable):
            self.push(self.output.side_effects.load_attr(item, inst.argval))
        else:
            original(self, inst)

    return load_global


def _make_getattr(original: Method) -> Method:
    @functools.wraps(original)
    def getattr_(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        item = _written(tx.output, vars(self.value), name)
        if item is not None:
            return tx.output.side_effects.load_attr(item, name)
        if is_compiling_for_gradc():
            try:
                getattr(self.value, name)
            except AttributeError as error:
                raise_observed_exception(AttributeError, tx, args=[*error.args])
        return original(self, tx, name, *args, **kwargs)

    return getattr_


def _make_hasattr(original: Method) -> Method:
    @functools.wraps(original)
    def hasattr_(self: Any, tx: Any, name: str) -> Any:
        if not is_compiling_for_gradc():
            return original(self, tx, name)
        if _written(tx.output, vars(self.value), name) is not None:
            return ConstantVariable.create(True)
        if self.source:
            install_guard(self.source.make_guard(functools.partial(GuardBuilder.HASATTR, attr=name)))
        return original(self, tx, name)

    return hasattr_


def _make_import(original: Method) -> Method:
    @functools.wraps(original)
    def import_name(self: Any, inst: Any) -> None:
        original(self, inst)
        module, effects = self.stack[-1], self.output.side_effects
        if is_compiling_for_gradc():
            is_known = module.value in effects
            self.stack[-1] = effects[module.value] if is_known else effects.track_object_existing(module.value, module)

    return import_name


def _written(output: Any, namespace: dict[str, Any] | None, name: str) -> Any:
    """What ``name`` of the namespace was last written by, before it is written back behind the graph; None if it was not."""
    if _ARE_WRITTEN not in vars(output):
        return None
    items = [item for item, written in output.side_effects.store_attr_mutations.items() if name in written]
    return next((item for item in reversed(items) if _namespace_of(item, output) is namespace), None)


def _namespace_of(item: Any, output: Any) -> dict[str, Any] | None:
    if isinstance(item, NewGlobalVariable):
        return output.global_scope
    return vars(item.value) if isinstance(item, PythonModuleVariable) else None


def _is_of_a_module(dictionary: dict[Any, Any]) -> bool:
    return any(key in dictionary for key in _OF_MODULES)


def _end_graph(name: str) -> Any:
    end_graph("global with two names", "It is written by one name and read by another.", name)
