"""A global is ``X`` in its module and ``module.X`` in others: what is written by one of the two names is read by both.

Dynamo notes what is written at the name that it was written by, and finds it there again; the other name tells what was there
before the graph. Here the attribute of a module and the global that are one stand for each other.
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
from gradc.torch_private.dynamo_patches.attribute_dict_aliasing import namespace_of
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.operators import dispatch_tables
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around

_NAMES = (NewGlobalVariable, PythonModuleVariable)
_ARE_WRITTEN = "gradc_modules_are_written"  # of what a graph is made in, so that all others are not searched


def write_into_modules_by_all_names() -> Patch:
    """What compiled code writes into a module it reads at once, by each name of it."""
    return Patch(
        "write_into_modules_by_all_names",
        "What is written as a module's attribute, Dynamo does not find as a global of that module; nor the other way round.",
        (
            around(SideEffects, "store_attr", _store),
            around(InstructionTranslatorBase, "_load_global", _load),
            around(InliningInstructionTranslator, "_load_global", _load),
            around(PythonModuleVariable, GETATTR, _getattr),
            around(PythonModuleVariable, "call_obj_hasattr", _hasattr),
            *(after(table, dis.opmap["IMPORT_NAME"], _import) for table in dispatch_tables()),
        ),
    )


def _store(original: Method, self: Any, item: Any, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(item, _NAMES):
        if isinstance(value, DeletedVariable):
            end_graph("deleted global", "Whoever reads it by another name would be told what was there before.", name)
        output = self.output_graph_weakref()
        vars(output)[_ARE_WRITTEN] = True
        first = _written(output, namespace_of(item, output), name)
        item = item if first is None or type(first) is type(item) else first
    original(self, item, name, value, *args, **kwargs)


def _load(original: Method, self: Any, inst: Any) -> None:
    namespace = self.f_globals if inst.argval in self.f_globals else self.f_builtins
    item = _written(self.output, self.f_globals, inst.argval) or _written(self.output, namespace, inst.argval)
    if isinstance(item, PythonModuleVariable):
        self.push(self.output.side_effects.load_attr(item, inst.argval))
    else:
        original(self, inst)


def _getattr(original: Method, self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    item = _written(tx.output, vars(self.value), name)
    if item is not None:
        return tx.output.side_effects.load_attr(item, name)
    _raise_if_missing(self.value, tx, name)
    return original(self, tx, name, *args, **kwargs)


def _raise_if_missing(module: Any, tx: Any, name: str) -> None:
    """In Python's words; Dynamo has none."""
    try:
        getattr(module, name)
    except AttributeError as error:
        raise_observed_exception(AttributeError, tx, args=[*error.args])


def _hasattr(original: Method, self: Any, tx: Any, name: str) -> Any:
    if _written(tx.output, vars(self.value), name) is not None:
        return ConstantVariable.create(True)
    if self.source:
        install_guard(self.source.make_guard(functools.partial(GuardBuilder.HASATTR, attr=name)))
    return original(self, tx, name)


def _import(_: Any, self: Any, inst: Any) -> None:
    """``import module`` gives the variable that the module has, so that it is written into, and read from, as that one."""
    module, effects = self.stack[-1], self.output.side_effects
    is_known = module.value in effects
    self.stack[-1] = effects[module.value] if is_known else effects.track_object_existing(module.value, module)


def _written(output: Any, namespace: dict[str, Any] | None, name: str) -> Any:
    """By what ``name`` of the namespace was written in this graph; None if it was not."""
    if _ARE_WRITTEN not in vars(output):
        return None
    items = [item for item, written in output.side_effects.store_attr_mutations.items() if name in written]
    written = (item for item in reversed(items) if isinstance(item, _NAMES) and namespace_of(item, output) is namespace)
    return next(written, None)
