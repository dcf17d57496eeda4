"""``value = yield from generator``: the value is what the generator returns."""

from __future__ import annotations

import dis
import functools
from typing import Any

from torch._dynamo.symbolic_convert import InliningGeneratorInstructionTranslator
from torch._dynamo.variables.constant import ConstantVariable

from gradc.torch_private.dynamo_names import RAISED_EXCEPTION
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def give_what_generators_return(is_ours: IsOurs) -> Patch:
    """Where one is at its end, take the value of its StopIteration."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def send(self: Any, inst: Any) -> Any:
            sent, behind = self.stack[-1], self.instruction_pointer
            result = original(self, inst)
            is_at_end = self.instruction_pointer != behind and self.stack[-1] is sent
            if is_at_end and is_ours(self.output.compiler_fn):
                values = getattr(self.exn_vt_stack, RAISED_EXCEPTION)().args
                self.stack[-1] = values[0] if values else ConstantVariable.create(None)
                self.exn_vt_stack.clear_current_exception()
            return result

        return send

    table = InliningGeneratorInstructionTranslator.dispatch_table
    return Patch(
        "give_what_generators_return",
        "Dynamo gives None for it.",
        (Replace(table, dis.opmap["SEND"], make),),
        versions=("2.13",),
    )
