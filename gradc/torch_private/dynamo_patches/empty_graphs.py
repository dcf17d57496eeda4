"""A call that makes no op of torch's, as one that returns at once, leaves a function to be compiled for the calls that do.

Dynamo skips a function for good where it traced no op: every later call runs eagerly, and nobody is told. Here such calls run
the function as it is, Python's own, for as long as what they were traced under holds.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from torch._dynamo import config, convert_frame
from torch._dynamo.symbolic_convert import InstructionTranslator, ReturnValueOp
from torch._dynamo.utils import orig_code_map
from torch._guards import CompileContext

from gradc.torch_private.dynamo_patches.code_replacement import begun_with
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around


def keep_functions_compiled() -> Patch:
    """Guard such a call, and run the function's own code under these guards."""
    empty = threading.local()  # ended: the compilation that has just ended without an op, and the function's own code

    def return_(original: Method, self: Any, inst: Any) -> None:
        if self.output.count_calls() or _is_compiled_anyway(self):
            return original(self, inst)
        try:
            with config.patch(allow_empty_graphs=True):
                original(self, inst)
        except ReturnValueOp:
            empty.ended = CompileContext.current_compile_id(), self.f_code
            raise

    def wrap(original: Method, guarded_code: Any) -> Any:
        compilation, code = empty.__dict__.pop("ended", (None, None))
        if code is not None and compilation == guarded_code.compile_id:
            guarded_code.guard_manager.gradc_replaced = guarded_code.code  # as it dies, globals go that guards look at
            own = begun_with(code, ())
            orig_code_map[own] = code  # where another compilation asks why this one did not serve
            guarded_code = dataclasses.replace(guarded_code, code=own)
        return original(guarded_code)

    return Patch(
        "keep_functions_compiled",
        "Dynamo skips a function for good after a call that made no op, whatever the others do.",
        (around(InstructionTranslator, "_return", return_), around(convert_frame, "wrap_guarded_code", wrap)),
    )


def _is_compiled_anyway(translator: Any) -> bool:
    """True where Dynamo compiles what makes no op: its own code has effects to replay, or nothing may be skipped."""
    return bool(
        config.allow_empty_graphs
        or translator.inconsistent_side_effects
        or translator.symbolic_locals_contain_module_class()
        or translator.export
        or translator.one_graph
        or translator.error_on_graph_break
        or translator.is_tracing_resume_prologue
    )
