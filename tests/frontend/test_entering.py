"""Compiled functions that are called without torch's wrapper: what the wrapper asks holds all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._C._functorch import get_dynamic_layer_stack_depth

import gradc
from gradc import native
from gradc.frontend.entering import quickly
from gradc.torch_private.entering import taken_apart
from tests.oracle import check, constant, leaf
from tests.python_calls import python_of

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))
OPTIONS = {"compare_with_eager": False}


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    gradc.reset()
    yield
    gradc.reset()


def trained(net: nn.Module) -> Callable[..., Tensor]:
    def step(x: Tensor, *, scale: float = 1.0) -> Tensor:
        loss = net(x).square().mean() * scale
        loss.backward()
        return loss.detach()

    return step


@pytest.mark.parametrize("is_module", [False, True])
def test_torchs_wrapper_is_left_out(is_module: bool) -> None:
    net, x = nn.Linear(3, 3), torch.ones(2, 3)
    run = gradc.compile(net if is_module else trained(net), options=OPTIONS)
    run(x)
    assert "compile_wrapper" not in python_of(lambda: run(x))


@pytest.mark.parametrize("is_module", [False, True])
@pytest.mark.parametrize("stance", ["force_eager", "fail_on_recompile", "eager_on_recompile"])
def test_stances(is_module: bool, stance: Any) -> None:
    net = nn.Linear(3, 3)
    run = gradc.compile(net if is_module else trained(net), options=OPTIONS)
    run(torch.ones(2, 3))
    with torch.compiler.set_stance(stance):
        assert "compile_wrapper" in python_of(lambda: run(torch.ones(2, 3)))


def test_no_compilation_where_a_stance_forbids_it() -> None:
    run = gradc.compile(trained(nn.Linear(3, 3)), options=OPTIONS)
    with torch.compiler.set_stance("force_eager"):
        run(torch.ones(2, 3))
    assert not gradc.counters["aot"]


def test_errors_leave_everything_as_it_was() -> None:
    @gradc.compile(options=OPTIONS)
    def step(x: Tensor, fails: bool) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            if fails:
                raise ValueError("inside")
            return y.sin().sum()

        loss = torch.func.grad(inner)(x).sum() + x.sum()
        loss.backward()
        return loss

    for fails in (False, True, False):
        before = get_eval_frame_callback(), get_dynamic_layer_stack_depth()
        if fails:
            with pytest.raises(ValueError, match="inside"):
                step(torch.ones(3, requires_grad=True), fails)
        else:
            step(torch.ones(3, requires_grad=True), fails)
        assert (get_eval_frame_callback(), get_dynamic_layer_stack_depth()) == before


def test_arguments_by_name_and_none() -> None:
    def step(compile: Any, w: Tensor) -> Any:
        @compile
        def run(*, a: float = 2.0, **more: float) -> Tensor:
            loss = (w * a * more.get("b", 1.0)).sin().sum()
            loss.backward()
            return loss

        return run(), run(a=3.0), run(b=0.5), w.grad

    check(step, leaf(3))


def test_inside_of_other_compiled_code() -> None:
    def step(compile: Any, net: nn.Module, x: Tensor) -> Any:
        inner = compile(trained(net))
        outer = compile(lambda x: inner(x * 2) + inner(x, scale=0.5))
        return outer(x), outer(x + 1), [p.grad for p in net.parameters()]

    check(step, lambda: nn.Linear(3, 3), constant(2, 3), allow_fallback=True)


def test_inside_of_what_another_backend_compiles() -> None:
    net = nn.Linear(3, 3)
    run = gradc.compile(net, options=OPTIONS)
    outer = torch.compile(lambda x: run(x).sin(), backend="eager")
    x = torch.ones(2, 3)
    torch.testing.assert_close(outer(x), net(x).sin(), rtol=0, atol=0)


def test_hooks_that_torch_has_around_are_called() -> None:
    """As for ``dynamic=True``, which is a setting while the function runs."""

    def step(compile: Any, net: nn.Module) -> Any:
        run = compile(net, dynamic=True)
        return [run(torch.ones(size, 3)) for size in (2, 3, 5)]

    assert check(step, lambda: nn.Linear(3, 3)).num_graphs == 1


@pytest.mark.parametrize("on_the_way", ["in", "out"])
def test_errors_of_these_hooks_are_the_callers(on_the_way: str) -> None:
    """Such as Ctrl-C, which Python raises where it happens to be."""

    def leave() -> None:
        if on_the_way == "out" and is_interrupted:
            raise KeyboardInterrupt

    def enter() -> Callable[[], None]:
        if on_the_way == "in" and is_interrupted:
            raise KeyboardInterrupt
        return leave

    is_interrupted, compiled = False, torch.compile(lambda x: x * 2, backend="gradc")
    parts = taken_apart(compiled)
    assert parts is not None
    parts[3].append(enter)
    run, before = native.extension.entered(parts), get_eval_frame_callback()
    run(torch.ones(2))
    is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        run(torch.ones(2))
    assert get_eval_frame_callback() is before
    is_interrupted = False
    assert run(torch.ones(2)).tolist() == [2, 2]


def test_what_is_no_wrapper_of_torchs_is_called_as_it_is() -> None:
    def function() -> None:
        pass

    whole = torch.compile(function, backend="eager", fullgraph=True)
    assert quickly(function) is function and quickly(whole) is whole
