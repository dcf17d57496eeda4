"""``value = yield from generator``: the value is what the generator returns."""

from __future__ import annotations

import dis
from typing import Any

from torch._dynamo.symbolic_convert import InliningGeneratorInstructionTranslator
from torch._dynamo.variables.constant import ConstantVariable

from gradc.torch_private.dynamo_names import RAISED_EXCEPTION
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around


def give_what_generators_return() -> Patch:
    """Where one is at its end, take the value of its StopIteration."""

    table = InliningGeneratorInstructionTranslator.dispatch_table
    return Patch(
        "give_what_generators_return",
        "Dynamo gives None for it.",
        (around(table, dis.opmap["SEND"], _send),),
        versions=("2.13",),
    )


def _send(original: Method, self: Any, inst: Any) -> Any:
    sent, behind = self.stack[-1], self.instruction_pointer
    result = original(self, inst)
    is_at_end = self.instruction_pointer != behind and self.stack[-1] is sent
    if is_at_end:
        values = getattr(self.exn_vt_stack, RAISED_EXCEPTION)().args
        self.stack[-1] = values[0] if values else ConstantVariable.create(None)
        self.exn_vt_stack.clear_current_exception()
    return result
