"""Streams of a device that a function enters: what it computes there, it computes on them in Python, as in eager."""

from __future__ import annotations

from typing import Any

from torch._dynamo.variables.streams import StreamContextVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before


def leave_streams_to_python() -> Patch:
    """Do not compile a function that enters a stream: its own calls are compiled one by one."""
    return Patch(
        "leave_streams_to_python",
        "Dynamo only marks what a function computes on a stream: its graphs run it on the current one, and wait for nothing.",
        (before(StreamContextVariable, "enter", _enter),),
    )


def _enter(self: Any, tx: Any, *args: Any) -> None:
    end_graph(
        "stream",
        "a graph has no streams: all of it runs on the one that is current.",
        hints=["Enter the stream around the compiled function."],
        skip_frame=True,
    )
