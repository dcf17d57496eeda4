"""What torch's databases say that ops, modules and optimizers refuse: the same error, in the same words.

refused: only -> Verdicts
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from tests.compilers import Compiler, find
from tests.oracle import compare
from tests.peers.verdict import Verdict

NUM_SAMPLES = 3  # of each op
WAY = "gradc"


def refused(only: str) -> Iterator[Verdict]:
    """Arguments that ops and modules do not take."""
    for name, call, arguments in itertools.chain(_of_ops(only), _of_modules()):
        if only in name:
            yield _judge(name, call, arguments, find(WAY))


def _of_ops(only: str) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if op.error_inputs_func is None or only.split(" ")[0] not in op.name:
            continue
        for number, made in enumerate(itertools.islice(op.error_inputs("cpu"), NUM_SAMPLES)):
            sample = made.sample_input
            name = f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name} {number}"
            yield name, op.op, (sample.input, sample.args, sample.kwargs)


def _of_modules() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

    for info in module_db:
        if info.module_error_inputs_func is None:
            continue
        made = info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
        for number, one in enumerate(made):
            if one.error_on is not ModuleErrorEnum.FORWARD_ERROR:
                continue
            arguments = one.module_error_input.constructor_input
            module = info.module_cls(*arguments.args, **arguments.kwargs)
            forward = one.module_error_input.forward_input
            call = lambda input, args, kwargs, module=module: module(*input, *args, **kwargs)
            yield f"{info.name} {number}", call, (forward.args, (), forward.kwargs)


def _judge(name: str, call: Any, arguments: tuple[Any, ...], way: Compiler) -> Verdict:
    def step(compile: Any) -> None:
        input, args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), arguments)
        compile(lambda input, args, kwargs: (call(input, *args, **kwargs), None)[1])(input, args, kwargs)

    report = compare(step, compiler=way, compare_messages=True)
    return Verdict(name, report.differences, tuple(report.fallbacks))
