"""backward_pass_autocast: for every autocast around forward and backward, the gradients are those that the setting names."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import gradc
from gradc.errors import ConfigError
from tests.observe import same_with_strides

DTYPES = (None, torch.bfloat16, torch.float16)
SETTINGS: tuple[Any, ...] = (
    "ambient",
    "same_as_forward",
    "off",
    {"device_type": "cpu", "dtype": torch.bfloat16},
    [{"device_type": "cpu", "dtype": torch.float16}, {"device_type": "cpu", "enabled": False}],
)


def autocast(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


@contextlib.contextmanager
def described_by(setting: Any, forward: torch.dtype | None, backward: torch.dtype | None) -> Iterator[None]:
    """The autocast that eager's backward must run under to be what ``setting`` describes."""
    with contextlib.ExitStack() as stack:
        if setting == "ambient":
            stack.enter_context(autocast(backward))
        elif setting == "same_as_forward":
            stack.enter_context(autocast(forward))
        elif setting != "off":
            for arguments in setting if isinstance(setting, list) else [setting]:
                stack.enter_context(torch.autocast(**arguments))
        yield


class Model(torch.nn.Module):
    """A weight used twice, a float32 part, and a promotion: everything autocast treats in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(torch.tanh(self.first(x)))
        y = torch.nn.functional.layer_norm(y, (16,)) + x @ self.first.weight
        with torch.autocast("cpu", enabled=False):
            return self.head(y.float()).logsumexp(-1)


def gradients(function: Any, model: Model, x: torch.Tensor, forward: Any, backward: Any) -> list[torch.Tensor]:
    inputs = [x, *model.parameters()]
    with forward:
        out = function(x)
    with backward:
        return list(torch.autograd.grad(out, inputs, torch.linspace(-1, 1, out.numel())))


def assert_bitwise(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert same_with_strides(actual, expected)


@pytest.mark.parametrize("setting", SETTINGS, ids=["ambient", "same_as_forward", "off", "dict", "list"])
def test_gradients_are_those_of_the_eager_program_that_the_setting_describes(setting: Any) -> None:
    """All nine pairs of states, changing from call to call of one compiled function."""
    torch.manual_seed(0)
    model, x = Model(), torch.randn(8, 16, requires_grad=True)
    with gradc.config.patch(backward_pass_autocast=setting):
        compiled = gradc.compile(model)
        for forward, backward in itertools.product(DTYPES, DTYPES):
            described = described_by(setting, forward, backward)
            expected = gradients(model, model, x, autocast(forward), described)
            actual = gradients(compiled, model, x, autocast(forward), autocast(backward))
            assert_bitwise(actual, expected)
    assert not gradc.counters["fallbacks"]


@pytest.mark.parametrize("is_inside", [False, True])
def test_the_issue_that_started_this(is_inside: bool) -> None:
    """reference/issue-inner-autocast.txt on CPU: backward outside, and inside, the outer autocast."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 64)
    h = torch.randn(4, 64, dtype=torch.bfloat16, requires_grad=True)

    def inner(x: torch.Tensor) -> torch.Tensor:
        with torch.amp.autocast("cpu", enabled=False):
            return x.float() @ linear.weight.float().T

    def run(function: Any) -> list[torch.Tensor]:
        with torch.amp.autocast("cpu", dtype=torch.bfloat16):
            out = function(h)
        with autocast(torch.bfloat16 if is_inside else None):
            return list(torch.autograd.grad(out.sum(), [linear.weight, h]))

    assert_bitwise(run(gradc.compile(inner)), run(inner))


def test_a_weight_shared_by_two_regions_is_cast_once() -> None:
    """The autocast cache outlives a region: the gradients of all uses add up in bfloat16 before the one cast back."""
    torch.manual_seed(0)
    weight = torch.randn(16, 16, requires_grad=True)

    def cell(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weight + x)

    def run(function: Any) -> list[torch.Tensor]:
        y = torch.linspace(-1, 1, 64).view(4, 16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(4):
                y = function(y) @ weight
        return list(torch.autograd.grad(y.float().sum(), [weight]))

    assert_bitwise(run(gradc.compile(cell)), run(cell))


def test_the_setting_in_force_at_compile_time_stays_with_the_region() -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(8, 16, requires_grad=True)
    compiled = gradc.compile(model)
    with gradc.config.patch(backward_pass_autocast="off"):
        compiled(x)
    off = torch.autocast("cpu", enabled=False)
    ambient = autocast(torch.bfloat16)
    expected = gradients(model, model, x, autocast(None), off)
    assert_bitwise(gradients(compiled, model, x, autocast(None), ambient), expected)


@pytest.mark.parametrize("value", ["on", None, [], {"dtype": torch.bfloat16}, {"device_type": "cpu", "depth": 1}, 3])
def test_a_value_that_is_no_setting_raises_at_once(value: Any) -> None:
    with pytest.raises(ConfigError, match="backward_pass_autocast"):
        gradc.config.patch(backward_pass_autocast=value).__enter__()


def test_a_kernel_that_calls_further_ops_sees_the_ambient_autocast() -> None:
    """``_trilinear`` calls bmm inside: under autocast that bmm is cast, in forward and in backward."""
    torch.manual_seed(0)
    inputs = [torch.randn(*shape, requires_grad=True) for shape in ((3, 5), (3, 4), (6, 5, 4))]

    def run(function: Any, forward: Any, backward: Any) -> list[torch.Tensor]:
        with forward:
            out = function(*inputs)
        with backward:
            return [out, *torch.autograd.grad(out.float().sum(), inputs)]

    compiled = gradc.compile(torch.nn.functional.bilinear)
    for forward, backward in itertools.product(DTYPES, DTYPES):
        expected = run(torch.nn.functional.bilinear, autocast(forward), autocast(backward))
        assert_bitwise(run(compiled, autocast(forward), autocast(backward)), expected)


def test_the_users_own_cast_of_a_weight_is_not_shared() -> None:
    """Only autocast's casts go through its cache; ``weight.bfloat16()`` makes a copy of its own each time."""
    torch.manual_seed(0)
    weight, x = torch.randn(16, 16, requires_grad=True), torch.randn(4, 16)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x.bfloat16() @ weight.bfloat16()) @ weight.bfloat16() + x @ weight

    def run(function: Any) -> list[torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = function(x)
        return list(torch.autograd.grad(out.float().sum(), [weight]))

    assert_bitwise(run(gradc.compile(f)), run(f))
