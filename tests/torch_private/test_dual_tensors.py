"""A function that was first called in forward-mode AD is compiled when it is called without."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

import gradc
from gradc.bits import same_bits
from tests.compilers import GRADC


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * 2).exp()


def tangent_of(call: object, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        return forward_ad.unpack_dual(call(dual)).tangent  # type: ignore[operator]


def test_a_function_that_first_got_a_tensor_with_a_tangent_is_compiled_for_calls_without() -> None:
    GRADC.reset()
    x = torch.arange(3.0, requires_grad=True)
    compiled = gradc.compile(function)
    assert same_bits(tangent_of(compiled, x), tangent_of(function, x))
    assert gradc.counters["fallbacks"] == {"forward-mode AD": 1}
    for _ in range(3):
        y = compiled(x)
        assert same_bits(y, function(x)) and type(y.grad_fn) is not type(function(x).grad_fn)
    assert gradc.counters["fallbacks"] == {"forward-mode AD": 1}
    assert same_bits(tangent_of(compiled, x), tangent_of(function, x))
    assert gradc.counters["stats"]["unique_graphs"] == 2


def test_the_open_level_is_left_as_it_is() -> None:
    GRADC.reset()
    with forward_ad.dual_level():
        level = forward_ad._current_level
        gradc.compile(function)(torch.ones(3))
        assert forward_ad._current_level == level >= 0
