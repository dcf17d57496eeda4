"""The environment of the process, where ``os.getenv`` reads it: guarded, as ``os.environ`` is."""

from __future__ import annotations

import os
from typing import Any

from torch._dynamo.source import SkipGuardSource
from torch._dynamo.symbolic_convert import InliningInstructionTranslator

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around


def guard_the_environment() -> Patch:
    """Guard what the functions of ``os`` read of ``os.environ``."""
    return Patch(
        "guard_the_environment",
        "Dynamo guards no globals of Python's own modules: what os.getenv told the first call would hold for all.",
        (around(InliningInstructionTranslator, "get_globals_source_and_value", _find),),
    )


def _find(original: Method, self: Any, name: str) -> tuple[Any, Any, Any]:
    module, variable, source = original(self, name)
    is_environment = self.f_globals is vars(os) and self.f_globals.get(name) is os.environ
    if is_environment and isinstance(source, SkipGuardSource):
        source = source.base
    return module, variable, source
