"""What is padded under no_grad requires no gradient, also where the function goes by that."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.oracle import check, leaf

PADS = {
    "constant_pad_nd": lambda x: torch.constant_pad_nd(x, (1, 0)),
    "F.pad": lambda x: F.pad(x, (1, 0)),
    "cut": lambda x: F.pad(x, (-1, 0)),
    "module": lambda x: torch.nn.ZeroPad2d(1)(x[None])[0],
    "replicate": lambda x: F.pad(x, (1, 0), mode="replicate"),
}


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("pad", PADS)
def test_requires_grad(pad, grad_mode, is_leaf):
    def step(compile, x):
        @compile
        def f(x):
            y = x if is_leaf else x * 2
            with torch.set_grad_enabled(grad_mode):
                padded = PADS[pad](y)
            return y.sum() + (padded.sum() if padded.requires_grad else 5), padded.requires_grad

        result, requires_grad = f(x)
        result.backward()
        return result, requires_grad

    check(step, leaf(3, 4))
