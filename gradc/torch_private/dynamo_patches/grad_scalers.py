"""torch's GradScaler inside compiled code: what it does to a loss is traced, and so is all of one that is off."""

from __future__ import annotations

from typing import Any

from torch._dynamo import trace_rules
from torch.amp import GradScaler, grad_scaler
from torch.optim import Optimizer

from gradc.torch_private.dynamo_names import FUNCTIONS, GETATTR
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.optimizers import end_at_step
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before

_UNLESS_OFF = (GradScaler.unscale_, GradScaler.update)


def trace_grad_scalers() -> Patch:
    """Trace ``scale``, and ``unscale_`` and ``update`` of a scaler that is off, which do nothing.

    Of one that is on these two end the graph, and ``step`` does as the optimizer's own does.
    """

    def is_inlined(original: Method, filename: str) -> bool:
        return filename == grad_scaler.__file__ or bool(original(filename))

    return Patch(
        "trace_grad_scalers",
        "Dynamo leaves all of torch.amp.GradScaler to Python, though one that is off does nothing.",
        (
            around(trace_rules, "is_torch_inline_allowed", is_inlined),
            *(before(kind, "call_function", _call) for kind in FUNCTIONS),
        ),
    )


def _call(self: Any, tx: Any, args: Any, kwargs: Any) -> None:
    if self.fn is GradScaler.step and args:
        optimizer = getattr(args[0].realize(), "value", None)
        if isinstance(optimizer, Optimizer):
            end_at_step(type(optimizer).step)
    if self.fn in _UNLESS_OFF and not _is_off(self, tx):
        end_graph("gradient scaler", "unscale_ and update of a GradScaler that is on look at numbers.", self.fn.__name__)


def _is_off(self: Any, tx: Any) -> bool:
    owners = self.self_args()
    return bool(owners) and getattr(owners[0], GETATTR)(tx, "_enabled").is_constant_match(False)
