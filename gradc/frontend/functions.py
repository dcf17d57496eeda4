"""An autograd.Function in one of Dynamo's graphs: two graphs, its forward and its backward, run as one node of autograd.

    apply: (arguments of Dynamo's operator) -> the Function's outputs

Dynamo makes it under ``fullgraph=True`` only, and of plain Functions only: see torch_private.plain_functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from gradc.errors import UnsupportedError
from gradc.torch_private.autograd import is_view
from gradc.torch_private.plain_functions import SWITCH_RECORDING


@dataclasses.dataclass(frozen=True)
class _Graphs:
    """``forward``: arguments -> outputs, what is kept; ``backward``: gradients, what is kept -> gradients.

    ``packed``: numbers of what ``save_for_backward`` was given, among what is kept; ``constant``: of outputs without gradients.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    packed: tuple[int, ...]
    constant: tuple[int, ...]


class _Function(torch.autograd.Function):
    """The code of ``graphs``. What the user saved is saved; what else backward reads is on ``ctx``."""

    @staticmethod
    def forward(ctx: Any, graphs: _Graphs, *args: Any) -> Any:
        outputs, kept = torch.fx.Interpreter(graphs.forward).run(*args)
        ctx.save_for_backward(*(kept[number] for number in graphs.packed))
        ctx.others = [None if number in graphs.packed else value for number, value in enumerate(kept)]
        ctx.graphs = graphs
        flat = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        if graphs.constant:
            ctx.mark_non_differentiable(*(flat[number] for number in graphs.constant))
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        kept = list(ctx.others)
        for number, tensor in zip(ctx.graphs.packed, ctx.saved_tensors, strict=True):
            kept[number] = tensor
        found = torch.fx.Interpreter(ctx.graphs.backward).run(*grads, *kept)
        return None, *(found if isinstance(found, (tuple, list)) else (found,))


def apply(
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule,
    *args: Any,
    saved_for_backward_idx: Sequence[int] = (),
    non_differentiable_idx: Sequence[int] = (),
    **_: Any,
) -> Any:
    """See the module's docstring.

    Raises:
        UnsupportedError: if an output is a view, or an argument itself.
    """
    graphs = _Graphs(
        _in_the_mode_there_is(forward),
        _in_the_mode_there_is(backward),
        tuple(saved_for_backward_idx),
        tuple(non_differentiable_idx),
    )
    outputs = _Function.apply(graphs, *args)
    if any(isinstance(out, torch.Tensor) and is_view(out) for out in outputs):
        raise UnsupportedError("autograd.Function that returns a view")  # as whose node the Function's would be lost
    return outputs


def _in_the_mode_there_is(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Dynamo switches recording off around both. In forward it is off anyway; in backward it is as the pass has it."""
    copied = torch.fx.Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    for node in copied.find_nodes(op="call_function", target=SWITCH_RECORDING):
        copied.erase_node(node)
    return torch.fx.GraphModule(graph, copied)
