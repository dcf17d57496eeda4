"""torch's own ops in Python, made for testing (custom_op_db), as ``torch.library.opcheck`` looks at ops: through a compiler.

custom_ops: only -> Verdicts

opcheck compiles each op by AOTAutograd, for plain and for symbolic sizes, and compares outputs and gradients with eager's. So
does this, with gradc in its place, and bit for bit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.compilers import find
from tests.oracle import compare
from tests.peers.verdict import Verdict


def custom_ops(only: str) -> Iterator[Verdict]:
    """Each op alone, and between others, which are compiled."""
    from torch.testing._internal.custom_op_db import custom_op_db

    for op in custom_op_db:
        if only not in op.name:
            continue
        for number, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)):
            for is_dynamic in (False, True):
                for is_between in (False, True):
                    yield _judge(f"{op.name} {number}", op.op, sample, is_dynamic, is_between)


def _judge(name: str, op: Any, sample: Any, is_dynamic: bool, is_between: bool) -> Verdict:
    given = (sample.input, sample.args, sample.kwargs)

    def step(compile: Any, given: Any) -> Any:
        def function(given: Any) -> Any:
            input, args, kwargs = _each_float(given, lambda x: x.sin() + x) if is_between else given
            found = op(input, *args, **kwargs)
            return _each_float(found, lambda x: x.exp() * 2) if is_between else found

        out = compile(function, dynamic=is_dynamic)(given)
        wanted = [
            leaf.float().sum() for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        if wanted:
            torch.stack(wanted).sum().backward()
        return out, [leaf.grad for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf.is_leaf]

    # Without counters: of a custom op's gradient that is added to another's, eager counts one write more.
    report = compare(step, lambda: _fresh(given), compiler=find("gradc"), compare_counters=False)
    about = f"{name}{', symbolic sizes' if is_dynamic else ''}{', between others' if is_between else ''}"
    return Verdict(about, report.differences, tuple(report.fallbacks))


def _each_float(values: Any, function: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda x: function(x) if x.is_floating_point() else x, values)


def _fresh(given: Any) -> Any:
    """Leaves of their own for a run."""
    return pytree.tree_map_only(torch.Tensor, lambda x: x.detach().clone().requires_grad_(x.requires_grad), copy.copy(given))
