"""Parameters of a subclass that refuses every call: what a capture looks at is none of the class's business."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

import gradc
from gradc import compiled_autograd
from gradc.bits import same_bits

pytestmark = pytest.mark.usefixtures("nothing_captured")


def per_sample_gradients(is_captured: bool) -> list[Any]:
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), []
    for batch in (4, 4, 6, 5):
        with compiled_autograd.enable() if is_captured else compiled_autograd.disable():
            call_for_per_sample_grads(model)(torch.randn(batch, 3)).sum().backward()
        for parameter in model.parameters():
            seen.append(parameter.grad_sample)
            del parameter.grad_sample
    return seen


def test_per_sample_gradients_of_expanded_weights() -> None:
    eager, captured = per_sample_gradients(False), per_sample_gradients(True)
    assert len(eager) == len(captured) and all(map(same_bits, eager, captured))
    assert gradc.counters["compiled_autograd"]["hits"]
