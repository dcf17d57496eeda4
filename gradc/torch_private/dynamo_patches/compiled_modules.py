"""Compiled modules inside of compiled code: Dynamo looks through them, as it does through torch's wrapper."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.builder import VariableBuilder

from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def look_through_compiled_modules(is_ours: IsOurs, module_of: Callable[[Any], Any]) -> Patch:
    """Trace the module that a compiled module stands for; ``module_of`` has it, as its attribute ``_orig_mod``."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def wrap(self: Any, value: Any) -> Any:
            module = module_of(value)
            if module is None or not is_ours(self.tx.output.compiler_fn):
                return original(self, value)
            self.install_guards(GuardBuilder.TYPE_MATCH)
            self.source = AttrSource(self.source, "_orig_mod")
            return original(self, module)

        return wrap

    return Patch(
        "look_through_compiled_modules",
        "A compiled module inside a compiled function is part of it, and no graph ends there.",
        (Replace(VariableBuilder, "wrap_module", make),),
    )
