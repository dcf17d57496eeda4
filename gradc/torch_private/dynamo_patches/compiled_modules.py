"""Compiled modules inside of compiled code: Dynamo looks through them, as it does through torch's wrapper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.builder import VariableBuilder

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around


def look_through_compiled_modules(module_of: Callable[[Any], Any], is_forward: Callable[[Any], bool]) -> Patch:
    """Trace the module that a compiled module stands for; ``module_of`` has it, as its attribute ``_orig_mod``.

    Libraries also wrap ``forward`` of a compiled module and set that in its place, as accelerate does for autocast: then the
    compiled call comes by it, and by the module a second time. ``is_forward``: whether a function is one of these, which
    has the one it stands for as ``__wrapped__``.
    """

    def wrap(original: Method, self: Any, value: Any) -> Any:
        module = module_of(value)
        if module is None:
            return original(self, value)
        self.install_guards(GuardBuilder.TYPE_MATCH)
        return VariableBuilder(self.tx, AttrSource(self.source, "_orig_mod"))(module)

    def forward(original: Method, self: Any, value: Any) -> Any:
        if not is_forward(value):
            return original(self, value)
        self.install_guards(GuardBuilder.CLOSURE_MATCH)
        return VariableBuilder(self.tx, AttrSource(self.source, "__wrapped__"))(value.__wrapped__)

    return Patch(
        "look_through_compiled_modules",
        "A compiled module inside a compiled function is part of it, and no graph ends there.",
        (around(VariableBuilder, "wrap_module", wrap), around(VariableBuilder, "_wrap", forward)),
    )
