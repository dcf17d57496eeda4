"""``requires_grad`` of what is padded under no_grad, which a function may read and go by."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.variables import builder

from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import after

_PADDING = (torch.constant_pad_nd, torch._C._nn.pad)


def pad_without_history() -> Patch:
    """Let a fake result of padding that was made under no_grad require no gradient."""
    return Patch(
        "pad_without_history",
        "Over fake tensors, what is padded under no_grad requires a gradient where its argument does: in eager it does not.",
        (after(builder, "get_fake_value", _get_fake_value),),
    )


def _get_fake_value(value: Any, node: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    if node.target in _PADDING and not torch.is_grad_enabled() and value.is_leaf:
        value.requires_grad_(False)
    return value
