"""Sequence numbers of autograd nodes, which each thread counts for itself: those of a device's thread, moved on.

count_on: (device) -> None
"""

from __future__ import annotations

from typing import Any

import torch

from gradc.torch_private.autograd import next_sequence_nr

MARGIN = 20_000  # more nodes than a job makes


class _CountOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, number: int) -> torch.Tensor:
        ctx.number = number
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        with torch.enable_grad():
            leaf = grad.detach().requires_grad_()
            while next_sequence_nr() < ctx.number:
                leaf.view_as(leaf)  # a node, and no kernel
        return grad, None


def count_on(device: torch.device) -> None:
    """Have the engine take nodes that the device's thread makes for younger than those that this thread makes next."""
    leaf = torch.ones((), device=device, requires_grad=True)
    _CountOn.apply(leaf, next_sequence_nr() + MARGIN).backward()
