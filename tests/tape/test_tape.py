"""A tape goes with the function that was compiled: its nodes, which C++ owns, do not keep it."""

import gc
from collections.abc import Callable

import pytest
import torch

import gradc
from gradc.tape.tape import Tape


def tapes() -> set[int]:
    gc.collect()
    return {id(value) for value in gc.get_objects() if type(value) is Tape}


@pytest.mark.parametrize("order", [1, 2])
def test_nothing_is_left_of_a_function_that_is_forgotten(order: int) -> None:
    def forget() -> None:
        torch.compiler.reset()
        gradc.reset()

    def compile_and_run(op: Callable[[torch.Tensor], torch.Tensor]) -> None:
        function = gradc.compile(lambda x, w: op((x @ w).tanh()).sin().sum())
        x, w = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
        grads = torch.autograd.grad(function(x, w), [x, w], create_graph=order == 2)
        if order == 2:
            sum(grad.square().sum() for grad in grads).backward()

    forget()
    before = tapes()
    for op in (torch.exp, torch.cos, torch.sigmoid):
        compile_and_run(op)
    made = tapes() - before
    assert made
    forget()
    assert not tapes() & made
