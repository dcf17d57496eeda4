"""Functions read their own globals, and modules are found by names that pass on: to a file that is loaded again, or to another.

Dynamo keeps the module that it found first, for as long as the process lives, and reads its globals for those of a function
that has its own, as each copy of a file has. Functions of one code are one to it, whatever globals they read.
"""

from __future__ import annotations

import dis
import sys
import types
from typing import Any

from torch._dynamo import symbolic_convert
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, DictGetItemSource, GlobalSource
from torch._dynamo.symbolic_convert import InliningInstructionTranslator, InstructionTranslatorBase
from torch._dynamo.variables.misc import NewGlobalVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.operators import dispatch_tables
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around


def find_modules_that_have_the_name() -> Patch:
    """Ask Python for the module of a name each time, and guard what ``import`` found; read a function's globals in its own."""
    return Patch(
        "find_modules_that_have_the_name",
        "A module that is loaded again, or a second one of its name, is the first to Dynamo: its globals are read, silently.",
        (
            around(symbolic_convert, "_import_module", _import),
            around(InstructionTranslatorBase, "import_source", _source),
            around(InliningInstructionTranslator, "get_globals_source_and_value", _globals),
            *(around(table, dis.opmap["IMPORT_NAME"], _statement) for table in dispatch_tables()),
            after(GuardBuilder, "CLOSURE_MATCH", _match),
        ),
    )


def _import(original: Method, name: str) -> Any:
    module = sys.modules.get(name)
    return original(name) if module is None else module


def _source(original: Method, self: Any, module_name: str) -> Any:
    alias, module = f"__import_{module_name.replace('.', '_dot_')}", sys.modules.get(module_name)
    if self.output.global_scope.get(alias, module) is module:
        return original(self, module_name)
    return GlobalSource(self.output.install_global_by_id(alias, module))


def _globals(original: Method, self: Any, name: str) -> tuple[Any, Any, Any]:
    if _is_registered(self.f_globals):
        return original(self, name)
    if self.current_instruction.opname == "STORE_GLOBAL":
        end_graph("global of a module that is not in sys.modules", "It is written there and then.", name)
    alias = self.output.install_global_by_id("___unnamed_scope", self.f_globals)
    return self.f_globals, NewGlobalVariable(), DictGetItemSource(GlobalSource(alias), name)


def _statement(original: Method, self: Any, inst: Any) -> None:
    """``import module``: it is guarded that the name still leads there. In torch's own code it does."""
    level, from_list = (value.as_python_constant() for value in self.stack[-2:])
    original(self, inst)
    if not str(self.f_globals.get("__name__")).startswith("torch."):
        name = self.resolve_name(inst.argval, self.calc_package(), level) if level else inst.argval
        for found in {name} if from_list else {name, name.partition(".")[0]}:
            _guard(self, found)


def _guard(tx: Any, name: str) -> None:
    modules = AttrSource(tx.import_source("sys"), "modules")
    install_guard(DictGetItemSource(modules, name).make_guard(GuardBuilder.ID_MATCH))


def _match(result: Any, self: Any, guard: Any) -> Any:
    """A function is guarded by its code: by its globals, too."""
    if type(self.get(guard)) is types.FunctionType:
        self._guard_on_attribute(guard, "__globals__", GuardBuilder.ID_MATCH)
    return result


def _is_registered(namespace: dict[str, Any]) -> bool:
    name = namespace.get("__name__")
    if not isinstance(name, str) or "torch_package" in name:  # Dynamo finds those of torch.package
        return True
    return getattr(sys.modules.get(name), "__dict__", None) is namespace
