"""Every op of torch's op_db, forward and backward: the native executor and the interpreter agree bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from gradc import executor, native
from gradc.executor.core import interpret
from tests.executor.agree import assert_same, capture, copies

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))

SAMPLES = 3
NOT_ON_CPU = (
    "jiterator", "torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward",
)  # fmt: skip
NOT_STRIDED = ("sparse.sampled_addmm", "sparse.mm")
UNINITIALISED = ("empty", "new_empty", "resize", "as_strided_scatter")


def step_of(op, sample):
    """A function of the sample's tensors to its outputs and their gradients, and those tensors."""
    leaves, spec = tree_flatten([sample.input, sample.args, sample.kwargs])
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def step(*values):
        given = iter(values)
        filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        first, args, kwargs = tree_unflatten(filled, spec)
        outputs = [out for out in tree_flatten(op(first, *args, **kwargs))[0] if isinstance(out, torch.Tensor)]
        sources = [value for value in values if value.requires_grad]
        targets = [out for out in outputs if out.requires_grad and out.layout is torch.strided]
        if not targets:
            return outputs
        return [
            *outputs,
            *torch.autograd.grad(targets, sources, [torch.ones_like(out) for out in targets], allow_unused=True),
        ]

    return step, tensors


VARIANTS = ("partial_views", "without_cudnn")  # copying the samples loses what they are views of; none on the CPU
OPS = [
    op
    for op in op_db
    if not op.name.startswith(UNINITIALISED + NOT_ON_CPU + NOT_STRIDED) and op.variant_test_name not in VARIANTS
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.formatted_name)
def test_op(op):
    dtype = torch.float32 if torch.float32 in op.dtypes else next(iter(op.dtypes))
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    for _, sample in zip(range(SAMPLES), op.sample_inputs("cpu", dtype, requires_grad=differentiable)):
        step, tensors = step_of(op, sample)
        program = capture(step, copies(tensors))
        plan = executor.lower(program)
        results = []
        for runner in (interpret.lower(program), plan):
            torch.manual_seed(3)
            arguments = copies(tensors)
            results.append([*runner(list(arguments)), *arguments, torch.get_rng_state()])
        for expected, got in zip(*results, strict=True):
            assert_same(got, expected)
