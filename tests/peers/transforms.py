"""torch.func's transforms of every op of torch's (op_db), inside of a compiled function, and differentiated once more.

transforms: only -> Verdicts

Kernels ask whether a tensor is a subclass, and the wrappers of transforms are: what is traced must take eager's way.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils import _pytree as pytree

from tests.compilers import find
from tests.oracle import compare
from tests.peers.verdict import Verdict

Scalar = Callable[[tuple[Tensor, ...]], Tensor]


def transforms(only: str) -> Iterator[Verdict]:
    """The second sample of each op, or its only one: ``grad``, and ``vmap`` of it over two sets of arguments."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        name = f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}"
        if only in name and op.supports_autograd and op.supports_dtype(torch.float32, "cpu"):
            yield from _judge(name, op)


def _judge(name: str, op: Any) -> Iterator[Verdict]:
    *_, sample = itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=True), 2)
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [number for number, value in enumerate(leaves) if isinstance(value, Tensor) and value.requires_grad]
    if not positions:
        return

    def scalar(tensors: tuple[Tensor, ...]) -> Tensor:
        given = list(leaves)
        for number, tensor in zip(positions, tensors, strict=True):
            given[number] = tensor
        input, args, kwargs = pytree.tree_unflatten(given, spec)
        return _sum_of_sines(op.op(input, *args, **kwargs))

    inputs = [functools.partial(_fresh, leaves[number]) for number in positions]
    for kind, transformed in (("grad", _slopes), ("vmap of grad", _slopes_of_two)):
        report = compare(functools.partial(_step, functools.partial(transformed, scalar)), *inputs, compiler=find("gradc"))
        yield Verdict(f"{kind} of {name}", report.differences, tuple(report.fallbacks))


def _step(function: Any, compile: Any, *tensors: Tensor) -> Any:
    found = compile(lambda *tensors: function(tensors))(*tensors)
    wanted = [slope.square().sum() for slope in found if slope.requires_grad]
    if wanted:
        torch.stack(wanted).sum().backward()
    return found


def _slopes(scalar: Scalar, tensors: tuple[Tensor, ...]) -> Any:
    return grad(scalar)(tensors)


def _slopes_of_two(scalar: Scalar, tensors: tuple[Tensor, ...]) -> Any:
    return vmap(grad(scalar), randomness="different")(tuple(torch.stack([tensor, tensor * 0.5]) for tensor in tensors))


def _sum_of_sines(results: Any) -> Any:
    found = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
    real = [leaf.real if leaf.is_complex() else leaf for leaf in found if leaf.is_complex() or leaf.is_floating_point()]
    return sum(leaf.sin().sum() for leaf in real)


def _fresh(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()
