"""torch's gradcheck and gradgradcheck, of ops compiled by gradc.

gradients: only -> Verdicts
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils import _pytree as pytree

from tests.compilers import EAGER, Compiler, find
from tests.peers.verdict import Verdict

MAX_ELEMENTS = 64


def gradients(only: str) -> Iterator[Verdict]:
    """The smallest sample of each op in float64: numbers against formulas, forward and backward, first and second order."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        name = f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}"
        if only in name and op.supports_autograd and op.supports_dtype(torch.float64, "cpu"):
            yield from _judge(name, op, find("gradc"))


def _judge(name: str, op: Any, way: Compiler) -> Iterator[Verdict]:
    made = list(itertools.islice(op.sample_inputs("cpu", torch.float64, requires_grad=True), 4))
    sample = min(made, key=_num_elements)
    if _num_elements(sample) > MAX_ELEMENTS:
        return
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [number for number, value in enumerate(leaves) if isinstance(value, torch.Tensor) and value.requires_grad]
    inputs = tuple(leaves[number].detach().requires_grad_() for number in positions)

    def function(*tensors: torch.Tensor) -> Any:
        given = list(leaves)
        for number, tensor in zip(positions, tensors, strict=True):
            given[number] = tensor
        input, args, kwargs = pytree.tree_unflatten(given, spec)
        return sample.output_process_fn_grad(op.gradcheck_wrapper(op.get_op(), input, *args, **kwargs))

    for check in (gradcheck, gradgradcheck) if op.supports_gradgrad else (gradcheck,):
        expected, found = (_outcome(check, way, function, inputs) for way in (EAGER, way))
        differences = () if expected == found else (f"{found}; eager: {expected}",)
        yield Verdict(f"{name} {check.__name__}: {found}", differences, tuple(way.fallbacks()))


def _num_elements(sample: Any) -> int:
    return sum(leaf.numel() for leaf in pytree.tree_leaves((sample.input, sample.args)) if isinstance(leaf, torch.Tensor))


def _outcome(check: Any, way: Compiler, function: Any, inputs: Any) -> str:
    """In its first line, what the check says: without the numbers of a failure, which are rounded."""
    torch.manual_seed(0)
    way.reset()  # all functions have the same code, of which Dynamo compiles a few
    try:
        return str(check(way(function), inputs, fast_mode=True, nondet_tol=1e-12))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
