"""Every differentiable op of op_db: the backward captured, and replayed on other values, against eager's.

    python -m tests.capture.sweep [NAME ...]

A sample's inputs are used three times: in eager, to capture, and changed in value, to replay (against eager again).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

import gradc
from gradc import compiled_autograd
from tests.observe import same_with_strides

NUM_SAMPLES = 10


def copied(sample: Any, shift: float) -> Any:
    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        result = value.detach().clone()
        if shift and value.is_floating_point() and value.requires_grad:
            result = result * (1 + shift)
        return result.requires_grad_(value.requires_grad)

    return tree_map(copy, (sample.input, sample.args, sample.kwargs))


def gradients(op: Any, sample: Any, shift: float, is_captured: bool) -> list[Any]:
    torch.manual_seed(0)
    leaves, args, kwargs = copied(sample, shift)
    inputs = [v for v in tree_flatten((leaves, args, kwargs))[0] if isinstance(v, torch.Tensor) and v.requires_grad]
    outputs = [out for out in tree_flatten(op(leaves, *args, **kwargs))[0] if isinstance(out, torch.Tensor)]
    roots = [out for out in outputs if out.requires_grad]
    if not roots or not inputs:
        raise NotImplementedError("nothing to differentiate")
    seeds = [torch.linspace(0.5, 1.5, out.numel()).to(out.dtype).reshape(out.shape) for out in roots]
    if is_captured:
        with compiled_autograd.enable():
            torch.autograd.backward(roots, seeds)
    else:
        torch.autograd.backward(roots, seeds)
    return [value.grad for value in inputs]


def problems(op: Any) -> Iterator[str]:
    samples = op.sample_inputs("cpu", torch.float32, requires_grad=True)
    for number, sample in zip(range(NUM_SAMPLES), samples):
        try:
            expected = [gradients(op, sample, shift, False) for shift in (0.0, 0.0, 0.01)]
        except Exception:
            continue
        if not same_with_strides(expected[0], expected[1]):
            continue  # eager does not agree with itself
        for run, (shift, wanted) in enumerate([(0.0, expected[0]), (0.0, expected[0]), (0.01, expected[2])]):
            try:
                found = gradients(op, sample, shift, True)
            except Exception as error:
                yield f"sample {number} run {run}: {type(error).__name__}: {str(error)[:150]}"
                break
            if not same_with_strides(wanted, found):
                yield f"sample {number} run {run}: gradients differ"
                break


def main(names: list[str]) -> int:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    num_ops = num_bad = 0
    for op in op_db:
        if (names and op.name not in names) or not op.supports_autograd or torch.float32 not in op.dtypes:
            continue
        num_ops += 1
        compiled_autograd.reset()
        found = list(problems(op))
        num_bad += bool(found)
        for problem in found:
            print(f"{op.name} {op.variant_test_name}: {problem}", flush=True)
    print(f"{num_ops} ops, {num_bad} with differences")
    print(dict(gradc.counters["compiled_autograd"]), dict(gradc.counters["fallbacks"]))
    return num_bad


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
