"""Regions inside of a checkpoint, which drops what they save and runs them again: compiled at both runs, or at one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters as dynamo_counters
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import CheckpointError, checkpoint

import gradc
from gradc.bits import same_bits
from tests.compilers import Compiler, find
from tests.oracle import check, leaf

around = functools.partial(checkpoint, use_reentrant=False)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(F.dropout(F.gelu(self.into(self.norm(x))), 0.25, self.training))


class Model(nn.Module):
    """Of checkpointed blocks, in a loop, which Dynamo leaves to Python."""

    def __init__(self, num_blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = around(block, x)
        return x


def step_of(call: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    y = call(x)
    y.square().mean().backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return [y.detach(), *grads, torch.get_rng_state()]


@pytest.fixture(params=["gradc", "gradc_captured"])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    return find(request.param)


def test_what_compiled_code_checkpoints_is_compiled() -> None:
    gradc.reset()
    model, x = Model(), torch.randn(4, 8)
    expected = step_of(model, model, x)
    compiled = gradc.compile(model, options={"compare_with_eager": False})
    for _ in range(3):
        assert same_bits(step_of(compiled, model, x), expected)
    assert gradc.counters["stats"]["unique_graphs"] == 2  # the first block's argument needs no gradient
    assert gradc.counters["aot"]["backward_compiles"] == 2
    assert not gradc.counters["fallbacks"]
    assert set(gradc.counters["uncompiled"]) == {"gradc: checkpoint"}


@pytest.mark.parametrize("is_compiled_first", [True, False])
@pytest.mark.parametrize("has_dead_branch", [True, False])
def test_one_run_compiled_and_the_other_not(is_compiled_first: bool, has_dead_branch: bool) -> None:
    """As where the time to compile ends in between."""
    block, x = Block(), torch.randn(4, 8)

    def f(x: Tensor) -> Tensor:
        y = block(x)
        if has_dead_branch:
            (y * x).exp()  # saves what no output leads to, and eager's checkpoint counts it
        return y.sin() * y

    expected = step_of(lambda x: around(f, x), block, x)
    compiled = gradc.compile(f, options={"compare_with_eager": False})
    step_of(lambda x: around(compiled, x), block, x)
    ways = iter([compiled, f] if is_compiled_first else [f, compiled])
    assert same_bits(step_of(lambda x: around(lambda x: next(ways)(x), x), block, x), expected)
    assert next(ways, None) is None


def test_backward_twice_with_the_graph_kept(compiler: Compiler) -> None:
    def step(compile: Any, x: Tensor, w: Tensor) -> None:
        y = compile(lambda x, w: around(lambda x, w: (x @ w.t()).tanh() * x.exp(), x, w))(x, w).sum()
        y.backward(retain_graph=True)
        y.backward()

    check(step, leaf(4, 8), leaf(8, 8), compiler=compiler)


def test_a_second_backward_raises_as_in_eager(compiler: Compiler) -> None:
    def step(compile: Any, x: Tensor) -> str:
        y = around(compile(lambda x: x.sin().exp()), x).sum()
        y.backward()
        with pytest.raises(RuntimeError) as raised:
            y.backward()
        return str(raised.value)

    check(step, leaf(4, 8), compiler=compiler)


def test_second_order(compiler: Compiler) -> None:
    def step(compile: Any, x: Tensor, w: Tensor) -> Tensor:
        y = compile(lambda x, w: around(lambda x, w: torch.tanh(x @ w).exp(), x, w))(x, w)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        slope.square().sum().backward()
        return slope

    check(step, leaf(4, 8), leaf(8, 8), compiler=compiler)


def test_an_argument_written_into_before_it_is_computed_again(compiler: Compiler) -> None:
    """Eager's checkpoint keeps no version."""

    def step(compile: Any, w: Tensor) -> None:
        x = torch.linspace(0, 1, 8)
        y = around(compile(lambda x, w: (x * w).sin() * w), x, w)
        x.mul_(3)
        y.sum().backward()

    check(step, leaf(8), compiler=compiler)


def test_computed_again_with_another_layout(compiler: Compiler) -> None:
    """What is saved has the same shape, and other strides."""

    def step(compile: Any, x: Tensor) -> Tensor:
        state = {"is_first": True}

        def f(x: Tensor) -> Tensor:
            z = x * 2 if state["is_first"] else (x.t() * 2).t()
            return z.sin().flatten()

        y = around(compile(f), x)
        state["is_first"] = False
        y.square().sum().backward()
        return y

    check(step, leaf(4, 4), compiler=compiler)


def test_computed_again_with_another_shape_raises_as_in_eager(compiler: Compiler) -> None:
    def step(compile: Any, x: Tensor) -> str:
        state = {"size": 4}
        y = around(compile(lambda x: x[: state["size"]].sin().exp()), x)
        state["size"] = 3
        with pytest.raises(CheckpointError) as raised:
            y.sum().backward()
        return str(raised.value)

    check(step, leaf(4), compiler=compiler, allow_fallback=True)


def test_inside_of_hooks_of_the_user(compiler: Compiler) -> None:
    def step(compile: Any, x: Tensor, w: Tensor) -> None:
        with save_on_cpu():
            y = compile(lambda x, w: around(lambda x, w: torch.tanh(x @ w).exp(), x, w) * w)(x, w)
        y.sum().backward()

    check(step, leaf(8, 8), leaf(8, 8), compiler=compiler, allow_fallback=True)


def test_one_inside_of_another(compiler: Compiler) -> None:
    def step(compile: Any, x: Tensor, w: Tensor) -> None:
        def inner(x: Tensor) -> Tensor:
            return F.dropout(torch.tanh(x @ w), 0.5)

        compile(lambda x: around(lambda x: around(inner, x).exp() * x, x))(x).sum().backward()

    check(step, leaf(4, 8), leaf(8, 8), compiler=compiler)


def test_reentrant(compiler: Compiler) -> None:
    def step(compile: Any, x: Tensor, w: Tensor) -> None:
        def inner(x: Tensor) -> Tensor:
            return F.dropout(torch.tanh(x @ w), 0.5)

        compile(lambda x: checkpoint(inner, x, use_reentrant=True) * 2)(x).sum().backward()

    check(step, leaf(4, 8), leaf(8, 8), compiler=compiler)


def test_autocast_as_in_the_forward(compiler: Compiler) -> None:
    def step(compile: Any, x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = compile(lambda x, w: around(lambda x, w: torch.tanh(x @ w).exp(), x, w))(x, w)
        y.sum().backward()
        return y

    check(step, leaf(4, 8), leaf(8, 8), compiler=compiler)


def test_under_another_compiler_checkpoint_is_torchs() -> None:
    gradc.compile(lambda x: x.sin())(torch.ones(2))
    seen = []

    def f(x: Tensor) -> Tensor:
        seen.append(torch._C._dynamo.eval_frame.get_eval_frame_callback())
        return x.sin()

    around(f, torch.ones(2, requires_grad=True)).sum().backward()
    assert seen == [None, None]


def test_two_models_whose_function_is_left_to_python_are_traced_once_each() -> None:
    """Dynamo was asked anew by each in turn, at each call, for it was remembered of the last one only."""
    gradc.reset()
    x = torch.randn(4, 8)
    compiled = [gradc.compile(Model(), options={"compare_with_eager": False}) for _ in range(2)]
    for _ in range(2):
        for call in compiled:
            call(x)
    before = dynamo_counters["frames"]["total"]
    for _ in range(3):
        for call in compiled:
            call(x)
    assert dynamo_counters["frames"]["total"] == before
    assert "recompile limit" not in gradc.counters["uncompiled"]
