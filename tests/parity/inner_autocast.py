"""The program of a known bug of torch.compile: a backward that is compiled under the autocast of its forward.

Forward runs under autocast, with autocast off around the product; backward runs outside of both, so in eager it is float32's.
"""

import torch
from torch import nn

torch.manual_seed(0)
w = nn.Linear(64, 64)
h = torch.randn(4, 64, dtype=torch.bfloat16, requires_grad=True)


def inner_fn(x):
    with torch.amp.autocast("cpu", enabled=False):
        return x.float() @ w.weight.float().T


def outer_fn(x, compile=False):
    if compile:
        return torch.compile(inner_fn, backend="aot_eager")(x)
    return inner_fn(x)


def step():
    with torch.amp.autocast("cpu", dtype=torch.bfloat16):
        out_compiled = outer_fn(h, compile=True)
    out_compiled.sum().backward()
