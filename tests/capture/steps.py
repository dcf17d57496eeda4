"""Steps that run several times, eagerly and with their backward captured: what each returns must be the same.

    check: (function that makes a step, ...) -> None        AssertionError on any difference, or another number of captures
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import gradc
from gradc import compiled_autograd
from gradc.bits import same_bits
from tests.observe import same_with_strides

Step = Callable[[int], Any]


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()


def check(make: Callable[[], Step], steps: int = 4, captures: int | None = 1, fallbacks: tuple[str, ...] = ()) -> None:
    """Run the step several times eagerly and captured, from the same start, and compare all that it returns."""
    torch.manual_seed(0)
    step = make()
    expected = [step(i) for i in range(steps)]
    state = torch.get_rng_state()
    torch.manual_seed(0)
    gradc.counters.clear()
    step = make()
    with compiled_autograd.enable():
        for i in range(steps):
            assert same_with_strides(expected[i], step(i)), f"step {i}"
    assert same_bits(state, torch.get_rng_state())
    counts = gradc.counters["compiled_autograd"]
    if captures is not None:
        assert counts["captures"] == captures, counts
        assert captures == 0 or counts["hits"] == steps - captures, (counts, gradc.counters["fallbacks"])
    assert {name.removeprefix("compiled autograd: ") for name in gradc.counters["fallbacks"]} == set(fallbacks)


def grads(*tensors: torch.Tensor) -> list[torch.Tensor | None]:
    return [None if tensor.grad is None else tensor.grad.clone() for tensor in tensors]


def model_step(model: nn.Module, *shape: int, zero: bool = True) -> Step:
    def step(i: int) -> Any:
        x = torch.randn(*shape)
        model(x).square().mean().backward()
        result = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        if zero:
            model.zero_grad(set_to_none=True)
        return result

    return step
