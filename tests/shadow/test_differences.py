"""What is said of two tensors that differ."""

import pytest
import torch

from gradc.shadow.differences import of_tensors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_smallest_difference_is_one_ulp(dtype):
    """In float64 it was said to be none: such numbers were counted in float64, which has not as many."""
    eager = torch.tensor([1.0, 2.0], dtype=dtype)
    compiled = torch.tensor([1.0 + torch.finfo(dtype).eps, 2.0], dtype=dtype)
    assert of_tensors(eager, compiled).endswith("1 of 2 differ, by up to 1 ulps")
