"""Where the nodes of a walked graph come from: the user's line, and the region that gradc compiled.

    line_of:   (Walk, node) -> "File: model.py:12 in forward, code: ...", or "" where nobody kept it
    region_of: (Walk, node, gradients) -> RegionBackward, or None for a node that is not gradc's

Regions know the line of each of their calls. Of an eager forward, torch keeps lines where anomaly mode is on.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from gradc.backward.cache import BackwardCache
from gradc.ir.program import Program
from gradc.ir.sizes import Sizes

if TYPE_CHECKING:
    from gradc._C import Walk

HOW_TO_KNOW = "user line unknown: run the forward under torch.autograd.detect_anomaly(check_nan=False), but not the backward"
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')
_INTERNAL = tuple(str(pathlib.Path(path).parent) for path in (str(torch.__file__), str(pathlib.Path(__file__).parent)))


@dataclasses.dataclass(frozen=True)
class RegionBackward:
    """What a node of gradc's ran: ``program``: (defined gradients, saved tensors, symbols) -> gradients.

    ``serial`` tells regions apart, in the order in which they were compiled.
    """

    program: Program
    num_saved: int
    sizes: Sizes
    serial: int


@dataclasses.dataclass(frozen=True)
class _Segment:
    """The segment of a compiled region that a node is the backward of: by its cache and its number, at these sizes."""

    cache: BackwardCache
    number: int
    sizes: Sizes


def line_of(walk: Walk, node: int) -> str:
    """See the module's docstring."""
    found = _segment_of(walk, node)
    if found is not None:
        return found.cache.tape.line_of(found.cache.segments[found.number].nodes[0])
    frames = _FRAME.findall("".join(walk.node(node).metadata.get("traceback_", ())))
    users = [frame for frame in frames if not frame[0].startswith(_INTERNAL)]
    if not users:
        return ""
    path, line, function, code = users[-1]
    return f"File: {path}:{line} in {function}, code: {code}"


def region_of(walk: Walk, node: int, gradients: Sequence[torch.Tensor | None]) -> RegionBackward | None:
    """See the module's docstring. None, too, where the region's tape ran node by node."""
    found = _segment_of(walk, node)
    if found is None:
        return None
    backward = found.cache.traced(found.number, gradients, walk.needed(node))
    if backward is None:
        return None
    return RegionBackward(backward.program, len(backward.saved), found.sizes, found.cache.serial)


def _segment_of(walk: Walk, node: int) -> _Segment | None:
    native = walk.segment(node)
    if native is not None:
        cache, number, symbols = native
        return _Segment(cache, number, cache.sizes_of(symbols))
    live = walk.node(node)
    if not isinstance(getattr(live, "backwards", None), BackwardCache):
        return None  # not gradc's; or of a derivative that could not be traced: its tape is run node by node
    return _Segment(live.backwards, live.segment.number, live.sizes)
