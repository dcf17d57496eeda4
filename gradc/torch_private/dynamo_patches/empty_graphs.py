"""A call that makes no op of torch's, as one that returns at once, leaves a function compiled for the calls that do.

Dynamo skips a function for good where it traced no op: every later call that no guard knows runs eagerly, and nobody is told.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from torch._dynamo import config
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.symbolic_convert import InstructionTranslator

from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def keep_functions_compiled(is_ours: IsOurs) -> Patch:
    """Compile such a call, too, under guards, where the function has been compiled before."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def return_(self: Any, inst: Any) -> None:
            is_compiled = is_ours(self.output.compiler_fn) and bool(_debug_get_cache_entry_list(self.f_code))
            with config.patch(allow_empty_graphs=True) if is_compiled else contextlib.nullcontext():
                original(self, inst)

        return return_

    return Patch(
        "keep_functions_compiled",
        "Dynamo skips a function for good after a call that made no op, whatever the others do.",
        (Replace(InstructionTranslator, "_return", make),),
    )
