"""Tensors by device and dtype: what is computed of the groups in turn has eager's order, and so eager's bits."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

import gradc
from gradc.bits import same_bits

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtypes", [DTYPES[:1], *itertools.permutations(DTYPES, 2), *itertools.permutations(DTYPES)])
def test_groups_come_in_eagers_order(dtypes):
    def grouped(tensors):
        groups = _group_tensors_by_device_and_dtype([tensors, list(tensors)], True)
        return [(dtype, len(one), len(other), indices) for (_, dtype), ((one, other), indices) in groups.items()]

    tensors = [torch.ones(2, dtype=dtype) for dtype in (*dtypes, *dtypes)]
    gradc.reset()
    assert gradc.compile(grouped)(tensors) == grouped(tensors)


def test_no_tensors_raise():
    def num_groups(x):
        return x.sin(), len(_group_tensors_by_device_and_dtype([[]]))

    for compiled in (num_groups, gradc.compile(num_groups)):
        with pytest.raises(RuntimeError, match="nested_tensorlist"):
            compiled(torch.ones(2))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_the_norm_of_gradients_of_several_dtypes(fullgraph):
    """A parameter of another dtype than the rest: the norm, and every gradient, differed in the last bit."""

    def clip(parameters):
        return nn.utils.clip_grad_norm_(parameters, 1.0)

    def clipped(clip, seed):
        torch.manual_seed(seed)
        dtypes = (torch.float64, torch.float64, torch.float32, torch.float64, torch.float64, torch.bfloat16, torch.float32)
        parameters = [nn.Parameter(torch.randn(4, 4, dtype=dtype)) for dtype in dtypes]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        return [clip(parameters), *(parameter.grad for parameter in parameters)]

    compiled = gradc.compile(clip, fullgraph=fullgraph)
    for seed in range(20):
        assert all(map(same_bits, clipped(compiled, seed), clipped(clip, seed)))
