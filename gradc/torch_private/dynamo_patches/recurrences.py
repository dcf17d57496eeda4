"""nn.LSTM, nn.GRU and nn.RNN: their calls go into graphs, in which they are the ATen calls that torch makes, step by step.

By itself Dynamo ends its graphs at these modules; that is one of its settings, see ``settings``. Here is what still ends a
graph: a packed sequence, whose sizes are values of a tensor; sizes that are symbols, each value of which would be compiled
anew; an LSTM without gradients, of which oneDNN's kernel makes something else; a call on CUDA, which cuDNN runs as one kernel
that looks into the memory of its weights; and more steps than are worth the time to trace them. All of it is counted, and runs
in torch's own loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._dynamo.guards import install_guard
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.fakes import has_symbolic_sizes
from gradc.torch_private.patches import Patch
from gradc.torch_private.switches import standing_at
from gradc.torch_private.weaver import instead

_RECURRENCES = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
_NUM_ARGUMENTS = 9
_MAX_STEPS = 64  # of all layers and directions; 64 of a GRU take 2 s to trace, forward and backward


def trace_short_recurrences() -> Patch:
    """End the graph at calls that are not to be traced: see the module's docstring."""

    handlers = TorchInGraphFunctionVariable._get_handlers()
    return Patch(
        "trace_short_recurrences",
        "The lengths of packed sequences are values; a loop over symbolic sizes fixes them; a long one takes long to trace.",
        tuple(instead(handlers, op, _call, may_be_missing=True) for op in _RECURRENCES),
    )


def _call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    """None: the call goes into the graph."""
    if self.value is torch.lstm:
        install_guard(standing_at("torch.backends.mkldnn.enabled", torch._C._get_mkldnn_enabled))
    if reason := _reason_to_end(self.value, args):
        explanation = f"gradc leaves a call of {self.value.__name__} to torch's own loop: {reason}."
        end_graph(reason, explanation, self.value.__name__)


def _reason_to_end(op: Any, args: Sequence[Any]) -> str:
    """Why the call must not be traced, or "". ``args`` as torch's own modules give them."""
    if len(args) < _NUM_ARGUMENTS:
        return "recurrence called by keywords"
    first, second = args[0].realize(), args[1].realize()
    examples = [arg.proxy.node.meta["example_value"] for arg in (first, second) if arg.is_tensor()]
    if second.is_tensor() and examples[1].dtype == torch.int64:
        return "packed sequence"
    if has_symbolic_sizes(examples):
        return "recurrence over sizes that change"
    if examples[0].device.type == "cuda":
        return "recurrence on CUDA"
    is_one_kernel = _is_one_kernel(op, examples[0], args)
    if is_one_kernel and not torch.is_grad_enabled():  # kernels of Programs run with gradients enabled
        return "LSTM without gradients"
    is_long = _num_steps(examples[0], args) > _MAX_STEPS and not is_one_kernel
    return "recurrence of many steps" if is_long else ""


def _num_steps(x: torch.Tensor, args: Sequence[Any]) -> int:
    """Of all layers and directions together."""
    is_batch_first = args[8].realize().as_python_constant()
    return int(x.shape[1 if is_batch_first else 0]) * _num_loops(args)


def _num_loops(args: Sequence[Any]) -> int:
    layers, is_bidirectional = (args[position].realize().as_python_constant() for position in (4, 7))
    return int(layers) * (2 if is_bidirectional else 1)


def _is_one_kernel(op: Any, x: torch.Tensor, args: Sequence[Any]) -> bool:
    """True if all steps of a layer are one call: oneDNN's, of an LSTM without projections."""
    weights = args[2].realize().unpack_var_sequence(None)
    is_projected = len(weights) in (3 * _num_loops(args), 5 * _num_loops(args))
    is_for_it = not is_projected and x.device.type == "cpu" and x.dtype != torch.float64
    return op is torch.lstm and is_for_it and bool(torch._C._get_mkldnn_enabled())
