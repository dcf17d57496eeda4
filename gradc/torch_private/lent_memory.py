"""Memory that graphs of a device lend to tensors (executor/core/csrc/device_graph.h), on other streams.

    note_streams: the patch, by which memory that another stream may still read is never lent again

A tensor's ``record_stream`` tells torch's allocator that its memory is not to be given out again before that stream is done.
The allocator passes over memory that is not its own to give out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from gradc.torch_private.patches import Method, Patch, Replace


def note_streams(keep_lent: Callable[[torch.Tensor], None]) -> Patch:
    """``keep_lent``: called with each tensor whose ``record_stream`` is."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def record_stream(self: torch.Tensor, *args: object, **kwargs: object) -> object:
            keep_lent(self)
            return original(self, *args, **kwargs)

        return record_stream

    reason = "The allocator passes over memory that is lent: a graph's next replay would write it while another stream reads."
    return Patch("note_streams", reason, (Replace(torch.Tensor, "record_stream", make),))
