"""The environment of the process, where ``os.getenv`` reads it: guarded, as ``os.environ`` is."""

from __future__ import annotations

import functools
import os
from typing import Any

from torch._dynamo.source import SkipGuardSource
from torch._dynamo.symbolic_convert import InliningInstructionTranslator

from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import Method, Patch, Replace


def guard_the_environment() -> Patch:
    """Guard what the functions of ``os`` read of ``os.environ``."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def find(self: Any, name: str) -> tuple[Any, Any, Any]:
            module, variable, source = original(self, name)
            is_environment = self.f_globals is vars(os) and self.f_globals.get(name) is os.environ
            if is_environment and isinstance(source, SkipGuardSource) and is_compiling_for_gradc():
                source = source.base
            return module, variable, source

        return find

    return Patch(
        "guard_the_environment",
        "Dynamo guards no globals of Python's own modules: what os.getenv told the first call would hold for all.",
        (Replace(InliningInstructionTranslator, "get_globals_source_and_value", make),),
    )
