"""Ops of others without a formula for their gradient: what their kernels do is recorded in eager, call by call.

    refuse_without_formula: (op, args, results) -> None

Unless somebody registered an autograd kernel, torch warns and runs the op's kernel with autograd on. If that calls torch's ops,
gradients flow through them. The tape knows the op's fake kernel only, which calls others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from gradc.errors import UnsupportedError
from gradc.torch_private.modes import has_autograd_kernel

_TORCHS_OWN = ("aten", "prim", "prims")


def is_custom(op: Any) -> bool:
    return op.namespace not in _TORCHS_OWN


def refuse_without_formula(op: Any, args: Iterable[Any], results: Iterable[Any], where: str) -> None:
    """Refuse a call through which gradients may flow, in eager, by its kernel's own doing.

    Raises:
        UnsupportedError: eager runs it.
    """
    if not is_custom(op) or not torch.is_grad_enabled():
        return
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    made = [result for result in results if isinstance(result, torch.Tensor)]
    written = tensors if op._schema.is_mutable else []
    can_record = any(tensor.is_floating_point() or tensor.is_complex() for tensor in (*made, *written))
    sources = [tensor for tensor in tensors if tensor.requires_grad]
    if can_record and not all(has_autograd_kernel(op, source.device.type) for source in sources):
        raise UnsupportedError("op without a formula for its gradient", str(op), where)
