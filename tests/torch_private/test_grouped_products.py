"""Grouped products, as of a mixture of experts: torch's function for fake tensors refuses what its kernel takes."""

import pytest
import torch
from torch import Tensor

import gradc
from gradc.bits import same_bits


@pytest.mark.parametrize("grouped", [torch._grouped_mm, getattr(torch.nn.functional, "grouped_mm", torch._grouped_mm)])
def test_float32_on_the_cpu(grouped):
    """The graph ends there, and goes on behind."""

    def function(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        return grouped(x.sin(), weights, offs=ends).cos()

    given = torch.randn(8, 16), torch.randn(2, 16, 16), torch.tensor([3, 8], dtype=torch.int32)
    gradc.reset()
    assert same_bits(gradc.compile(function)(*given), function(*given))
    assert gradc.counters["uncompiled"] == {"gradc: call that raises": 1} and not gradc.counters["fallbacks"]
