"""Small programs by which gradc looks whether a torch that it was not tested with behaves as it expects: plain PyTorch.

    PROBES: what a program is about -> the program, a function of two float32 tensors of shapes (2, 3) and (3, 3)

Each stands for something that gradc takes from torch without asking: what Dynamo captures, what runs below autograd, the order
of autograd's nodes, what they save, how results are laid out. frontend/probe.py compares them with eager; Dynamo compiles
these functions, unlike those of the other rooms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def layers(x: Tensor, w: Tensor) -> Any:
    return torch.nn.functional.linear(x, w, w[0]).tanh().sum(1)


def views(x: Tensor, w: Tensor) -> Any:
    return x.t()[1:] * 2, w.expand(2, 3, 3).transpose(0, 2).reshape(3, 6), (x * 1).view(-1)


def writes(x: Tensor, w: Tensor) -> Any:
    hidden = x * 1
    hidden[0].mul_(w[1])
    return hidden.sigmoid_(), hidden.exp()


def order_of_sums(x: Tensor, w: Tensor) -> Any:
    hidden = x.exp()
    return (hidden / 3).sum() + (hidden * 0.1).sum() + (hidden @ w).sin().sum() + hidden.cos().sum()


def ops_kept_whole(x: Tensor, w: Tensor) -> Any:
    return torch.addcdiv(x / 3, x, w[:2].exp(), value=0.7)


def lower_precision(x: Tensor, w: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ w @ w


def containers(x: Tensor, w: Tensor) -> Any:
    rows = {number: row for number, row in enumerate(w) if x.is_leaf}
    return [x * row for row in rows.values()]


PROBES = {
    "a layer and its gradients": layers,
    "views and their layouts": views,
    "writes into a view": writes,
    "the order in which gradients are added": order_of_sums,
    "ops that Dynamo must not take apart": ops_kept_whole,
    "autocast": lower_precision,
    "Python's containers": containers,
}
