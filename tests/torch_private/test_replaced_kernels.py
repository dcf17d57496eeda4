"""Somebody replaces a kernel of ATen's: compiled code calls it, as eager does, and says that it ran eagerly for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradc
from gradc import bits

REPLACED: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "forward": ("tanh", "CPU", lambda x: torch.ones_like(x)),
    "backward": ("tanh_backward", "CPU", lambda grad, y: torch.full_like(grad, 3.0)),
    "autograd": ("tanh", "AutogradCPU", lambda x: x * 2),
    "composite": ("square", "CompositeImplicitAutograd", lambda x: x * 5),
}


def f(x: Tensor) -> Tensor:
    return (x.tanh().square() * 0.5).sum()


def step(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
    x = torch.linspace(-1, 1, 5).requires_grad_()
    y = run(x)
    y.backward()
    assert x.grad is not None
    return [y.detach(), x.grad]


@pytest.mark.parametrize("is_early", (True, False), ids=("before", "behind the first calls"))
@pytest.mark.parametrize("name", REPLACED)
def test_a_replaced_kernel_is_called(name: str, is_early: bool) -> None:
    op, key, kernel = REPLACED[name]
    run = gradc.compile(f)
    for _ in range(0 if is_early else 3):
        assert all(map(bits.same_bits, step(run), step(f)))
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl(op, kernel, key)
        replaced = step(f)
        for _ in range(3):
            assert all(map(bits.same_bits, step(run), replaced))
        assert gradc.counters["fallbacks"]["replaced kernels"]
    finally:
        library._destroy()
    before = gradc.counters["fallbacks"].copy()
    for _ in range(3):
        assert all(map(bits.same_bits, step(run), step(f)))
    if not is_early:  # what was to be compiled meanwhile stays eager's
        assert gradc.counters["fallbacks"] == before


def test_the_kernels_of_an_optimizer() -> None:
    def train(compile: Callable[..., Any]) -> list[Tensor]:
        weight = torch.linspace(-1, 1, 5).requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()

        run, seen = compile(step), []
        for number in range(6):
            library = torch.library.Library("aten", "IMPL")
            try:
                if number == 4:
                    library.impl("_foreach_add_.List", lambda own, *_, alpha=1: [each.zero_() for each in own] and None, "CPU")
                    library.impl("add_.Tensor", lambda own, other, alpha=1: own.zero_(), "CPU")
                run()
            finally:
                library._destroy()
            seen.append(weight.detach().clone())
        return seen

    assert all(map(bits.same_bits, train(gradc.compile), train(lambda step: step)))


def test_libraries_of_others_change_nothing() -> None:
    library = torch.library.Library("gradc_tests_of_kernels", "DEF")
    try:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        before = gradc.counters["fallbacks"].copy()
        step(gradc.compile(f))
        assert gradc.counters["fallbacks"] == before
    finally:
        library._destroy()
