"""The live autograd node of a segment, in Python: what the native extension does faster.

    SegmentFunction.apply: (call, segment, *edges) -> outputs, one for each entry of the segment

Saved tensors go through ``save_for_backward``, so that freeing, version checks, ambient saved-tensors hooks and the errors
of a second backward are torch's own. A saved value that needs a gradient is an output of the node that makes it; what
unpacks is then part of the live graph.
"""

from __future__ import annotations

from typing import Any

import torch

from gradc.analysis.segments import Segment
from gradc.ir.layouts import has_free_strides
from gradc.ir.metadata import tensor_meta
from gradc.nodes.backward_call import BackwardCall
from gradc.torch_private.autograd import are_saved_tensors_hooked, is_graph_kept, is_view, use_count, will_engine_execute

_BACKWARD_TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)


class SegmentFunction(torch.autograd.Function):
    """One tensor in for each exit, one out for each entry. ``grad_fn.name()`` says SegmentFunctionBackward."""

    @staticmethod
    def forward(ctx: Any, call: Any, segment: Segment, *edges: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        outputs = tuple(call.entry_value(segment, number) for number in range(len(segment.entries)))
        ctx.on_ctx = {index: call.saved_value(index) for index in segment.on_ctx}
        ctx.save_for_backward(*(call.saved_value(index) for index in segment.saved if index not in ctx.on_ctx))
        ctx.is_repacked = are_saved_tensors_hooked()
        ctx.backwards, ctx.segment, ctx.sizes, ctx.is_spent = call.region.backwards, segment, call.sizes, False
        return outputs

    @staticmethod
    @torch.compiler.disable
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        segment = ctx.segment
        if ctx.is_spent and segment.has_hidden_saves:
            raise RuntimeError(_BACKWARD_TWICE)
        unpacked = iter(ctx.saved_tensors if len(ctx.on_ctx) < len(segment.saved) else ())  # raises once they are freed
        saved = [ctx.on_ctx[index] if index in ctx.on_ctx else next(unpacked) for index in segment.saved]
        ctx.is_spent = ctx.is_spent or not is_graph_kept()
        needed = [node is not None and will_engine_execute(node) for node, _ in ctx.next_functions]
        stealable = _stealable(tangents)
        call = BackwardCall(segment, ctx.sizes, saved, tangents, needed, ctx.is_repacked, stealable)
        return None, None, *ctx.backwards.grads(call)


def _stealable(tangents: tuple[torch.Tensor | None, ...]) -> tuple[int, ...]:
    """What ``BackwardCall.stealable`` says. What only Python holds passes for not held; the native node can tell."""
    return tuple(
        position
        for position, tangent in enumerate(tangents)
        if tangent is not None and has_free_strides(tensor_meta(tangent)) and use_count(tangent) == 1 and not is_view(tangent)
    )
