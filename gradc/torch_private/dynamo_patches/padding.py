"""``requires_grad`` of what is padded under no_grad, which a function may read and go by."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._dynamo.variables import builder

from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

_PADDING = (torch.constant_pad_nd, torch._C._nn.pad)


def pad_without_history(is_ours: IsOurs) -> Patch:
    """Let a fake result of padding that was made under no_grad require no gradient."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def get_fake_value(node: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            value = original(node, tx, *args, **kwargs)
            if node.target in _PADDING and is_ours(tx.output.compiler_fn) and not torch.is_grad_enabled() and value.is_leaf:
                value.requires_grad_(False)
            return value

        return get_fake_value

    return Patch(
        "pad_without_history",
        "Over fake tensors, what is padded under no_grad requires a gradient where its argument does: in eager it does not.",
        (Replace(builder, "get_fake_value", make),),
    )
