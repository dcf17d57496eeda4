"""On which devices a segment's backward runs: the engine has a thread for each, and runs a node on its forward's stream.

    refuse_several_devices: segments -> None          is_elsewhere: Segment -> bool          elsewhere: nodes -> devices

A live node stands for all nodes of its segment, and so runs in one thread, on one stream.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gradc.analysis.segments import Segment
from gradc.errors import UnsupportedError
from gradc.tape.tape import Node
from gradc.torch_private.autograd import all_input_metadata


def is_elsewhere(segment: Segment) -> bool:
    """True if the engine runs the segment in a thread of its device's: on any but the CPU."""
    return bool(elsewhere(segment.nodes))


def elsewhere(nodes: Iterable[Node]) -> set[torch.device]:
    """The devices but for the CPU in whose threads the engine runs nodes, and counts what it makes: see Note [Higher order]."""
    return {device for device in _devices_of(nodes) if device.type != "cpu"}


def refuse_several_devices(segments: Iterable[Segment]) -> None:
    """Refuse a segment whose nodes lie on several devices.

    Raises:
        UnsupportedError: eager runs it.
    """
    for segment in segments:
        found = _devices_of(segment.nodes)
        if len(found) > 1:
            raise UnsupportedError("backward on several devices", ", ".join(sorted(map(str, found))))


def _devices_of(nodes: Iterable[Node]) -> set[torch.device]:
    return {meta.device for node in nodes for meta in all_input_metadata(node) if meta is not None}
