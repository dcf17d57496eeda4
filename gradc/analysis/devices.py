"""On which devices a segment's backward runs: the engine has a thread for each, and runs a node on its forward's stream.

    refuse_several_devices: segments -> None          is_elsewhere: Segment -> bool

A live node stands for all nodes of its segment, and so runs in one thread, on one stream.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradc.analysis.segments import Segment
from gradc.errors import UnsupportedError
from gradc.torch_private.autograd import all_input_metadata


def is_elsewhere(segment: Segment) -> bool:
    """True if the engine runs the segment in a thread of its device's: on any but the CPU."""
    return any(meta is not None and meta.device.type != "cpu" for node in segment.nodes for meta in all_input_metadata(node))


def refuse_several_devices(segments: Iterable[Segment]) -> None:
    """Refuse a segment whose nodes lie on several devices.

    Raises:
        UnsupportedError: eager runs it.
    """
    for segment in segments:
        found = {meta.device for node in segment.nodes for meta in all_input_metadata(node) if meta is not None}
        if len(found) > 1:
            raise UnsupportedError("backward on several devices", ", ".join(sorted(map(str, found))))
