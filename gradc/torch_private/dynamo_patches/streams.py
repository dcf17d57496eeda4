"""Streams of a device that a function enters: what it computes there, it computes on them in Python, as in eager."""

from __future__ import annotations

import functools
from typing import Any

from torch._dynamo.variables.streams import StreamContextVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def leave_streams_to_python(is_ours: IsOurs) -> Patch:
    """Do not compile a function that enters a stream: its own calls are compiled one by one."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def enter(self: Any, tx: Any, *args: Any) -> Any:
            if is_ours(tx.output.compiler_fn):
                end_graph(
                    "stream",
                    "a graph has no streams: all of it runs on the one that is current.",
                    hints=["Enter the stream around the compiled function."],
                    skip_frame=True,
                )
            return original(self, tx, *args)

        return enter

    return Patch(
        "leave_streams_to_python",
        "Dynamo only marks what a function computes on a stream: its graphs run it on the current one, and wait for nothing.",
        (Replace(StreamContextVariable, "enter", make),),
    )
