"""Dictionaries that compiled code writes into: it empties one and fills it anew, in the order in which it found the keys."""

from __future__ import annotations

import functools
from typing import Any

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables.dicts import ConstDictVariable

from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def guard_order_of_written_dictionaries(is_ours: IsOurs) -> Patch:
    """Code that would empty a dictionary serves those alone whose keys stand as they stood when it was made."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def mutation(self: Any, var: Any) -> None:
            original(self, var)
            output = self.output_graph_weakref()
            if output is None or not is_ours(output.compiler_fn):
                return
            if isinstance(var, ConstDictVariable) and var.source and var.should_reconstruct_all:
                output.guard_on_key_order.add(var.source)
                install_guard(var.source.make_guard(GuardBuilder.DICT_KEYS_MATCH))

        return mutation

    return Patch(
        "guard_order_of_written_dictionaries",
        "Dynamo fills a dictionary in the order that it had when the code was made, whatever order the one at hand has.",
        (Replace(SideEffects, "mutation", make),),
    )
