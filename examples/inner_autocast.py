"""A float32 head inside bf16 autocast (pytorch#179804): gradc's gradient is eager's, whatever is ambient in backward.

Run it: python examples/inner_autocast.py. Prints four lines that end in True.
"""

from __future__ import annotations

import contextlib

import torch

import gradc

BF16 = {"device_type": "cpu", "dtype": torch.bfloat16}


def head(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return x.float() @ w.float().T


def gradient(function, backward_inside: bool) -> torch.Tensor:
    torch.manual_seed(0)
    x, w = torch.randn(4, 64, dtype=torch.bfloat16), torch.randn(64, 64, requires_grad=True)
    with torch.autocast(**BF16):
        loss = function(x, w).sin().sum()
    with torch.autocast(**BF16) if backward_inside else contextlib.nullcontext():
        loss.backward()
    return w.grad


if __name__ == "__main__":
    compiled = {
        "gradc.compile": gradc.compile(head),
        "torch.compile(backend='gradc')": torch.compile(head, backend="gradc"),
    }
    for name, function in compiled.items():
        for backward_inside in (False, True):
            same = torch.equal(gradient(function, backward_inside), gradient(head, backward_inside))
            print(f"{name}, backward {'inside' if backward_inside else 'outside'} autocast: {same}")
