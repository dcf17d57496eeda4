"""Verified calls: what shadow mode finds, what it then does, and that nothing can be seen of it else."""

from __future__ import annotations

import argparse
import gc
import random
import time
import types
import warnings
import weakref
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc.backends import lookup_backend
from gradc.bits import same_bits
from gradc.errors import DifferenceWarning

VERIFY = {"verify": 1}


@pytest.fixture(autouse=True)
def nothing_counted():
    gradc.counters.clear()
    yield
    gradc.reset()


def counted() -> dict[str, int]:
    return dict(gradc.counters["verified"])


def next_number(tensor: Tensor) -> Tensor:
    return torch.nextafter(tensor, torch.full_like(tensor, 9))


def perturbing(name: str, is_backward: bool) -> None:
    """A backend whose forwards, or backwards, give the next larger numbers."""

    def backend(program: Any) -> Any:
        run = lookup_backend("eager")(program)

        def perturbed(args: list[Any]) -> list[Any]:
            is_meant = program.name.startswith("backward") == is_backward
            return [next_number(result) if is_meant and result is not None else result for result in run(args)]

        return perturbed

    gradc.register_backend(name, backend)


def leaves(*shape: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(shape, requires_grad=True), torch.randn(shape, requires_grad=True)


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sin()


def test_a_training_step_is_eager_s_and_nothing_is_told():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
    compiled = gradc.compile(model, options=VERIFY)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        compiled(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert counted() == {"calls": 1, "backwards": 1}


def test_a_backend_that_changes_a_bit_of_the_forward_is_found_and_the_result_is_eager_s():
    perturbing("one_bit_forward", is_backward=False)
    x, w = leaves(3)
    compiled = gradc.compile(product, backend="one_bit_forward", options=VERIFY)
    with pytest.warns(DifferenceWarning, match=r"product does not do what eager does(.|\n)*result: element \[0\](.|\n)*1 ulps"):
        result = compiled(x, w)
    assert same_bits(result, product(x, w))
    result.sum().backward()
    expected = torch.autograd.grad(product(x, w).sum(), [x, w])
    assert same_bits([x.grad, w.grad], list(expected))


def test_what_differed_runs_eagerly_from_then_on_counted():
    perturbing("one_bit", is_backward=False)
    x, w = leaves(3)
    compiled = gradc.compile(product, backend="one_bit", options=VERIFY)
    with pytest.warns(DifferenceWarning):
        compiled(x, w)
    assert same_bits(compiled(x, w), product(x, w))
    assert counted() == {"calls": 1, "differences": 1}
    assert gradc.counters["fallbacks"]["differed from eager"] == 1


def test_a_backend_that_changes_a_bit_of_the_backward_is_found():
    perturbing("one_bit_backward", is_backward=True)
    x, w = leaves(3)
    compiled = gradc.compile(product, backend="one_bit_backward", options=VERIFY)
    with pytest.warns(DifferenceWarning, match=r"gradient of [xw]: element \[0\]"):
        compiled(x, w).sum().backward()
    compiled(x, w)
    assert gradc.counters["fallbacks"]["differed from eager"] == 1


def test_a_gradient_for_one_input_only_is_compared():
    perturbing("one_bit_of_one", is_backward=True)
    x, w = leaves(3)
    compiled = gradc.compile(product, backend="one_bit_of_one", options=VERIFY)
    with pytest.warns(DifferenceWarning, match="gradient of w"):
        torch.autograd.grad(compiled(x, w).sum(), w)


@torch.compiler.assume_constant_result
def is_traced() -> bool:
    """Asks in a way that gradc does not answer as eager would."""
    return torch._guards.TracingContext.try_get() is not None


def library(x: Tensor) -> Tensor:
    return x * 3 / 3 if is_traced() else x * 1


def test_a_function_that_branches_on_compiling_is_found():
    x = torch.arange(1.0, 100.0) / 7
    compiled = gradc.compile(library, options=VERIFY)
    with pytest.warns(DifferenceWarning, match=r"library(.|\n)*result: element"):
        result = compiled(x)
    assert same_bits(result, library(x))


def scribbling(program: Any) -> Any:
    """A backend that writes into what it was given, without a word to torch."""
    run = lookup_backend("eager")(program)

    def scribble(args: list[Any]) -> list[Any]:
        result = run([argument.clone() for argument in args])
        args[0].detach().numpy()[0] = 7.0
        return result

    return scribble


def test_a_write_behind_the_compiler_s_back_is_found_and_undone():
    gradc.register_backend("scribbling", scribbling)
    x = torch.zeros(3)
    with pytest.warns(DifferenceWarning, match=r"x: element \[0\] is 7.0, in eager 0.0"):
        result = gradc.compile(lambda x: x * 2, backend="scribbling", options=VERIFY)(x)
    assert x.tolist() == result.tolist() == [0.0, 0.0, 0.0]


def test_a_new_specialisation_is_verified_from_the_call_after_the_one_that_made_it():
    compiled = gradc.compile(lambda x: x * 2, dynamic=False, options=VERIFY)
    for size in (3, 3, 3, 4, 4, 4):
        compiled(torch.ones(size))
    assert counted() == {"calls": 2}


def test_a_backward_in_a_new_state_is_verified_when_it_comes_again():
    x, w = leaves(3)
    compiled = gradc.compile(product, options=VERIFY)
    for enabled in (False, False, True, True, True):
        with torch.autocast("cpu", enabled=enabled):
            y = (compiled(x, w)).sum()
        with torch.autocast("cpu", enabled=enabled):
            y.backward()
    assert counted()["backwards"] >= 2


def test_nothing_is_seen_of_the_run_in_eager(capsys):
    log: list[int] = []
    state = {"calls": 0}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.seen = 0, []
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.seen.append(self.calls)
            log.append(self.calls)
            state["calls"] += 1
            print("called")
            warnings.warn("called", stacklevel=1)
            self.mean.add_(x.detach())
            return x * self.weight * random.random() * float(numpy.random.rand()) + torch.rand(3)

    def run(compile: Any) -> list[Any]:
        log.clear()
        state["calls"] = 0
        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(0)
        model = Model()
        x = torch.ones(3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            y = compile(model)(x)
        y.sum().backward()
        told = [str(warning.message) for warning in caught]
        left = [y.detach(), model.weight.grad, model.mean, model.mean._version, x._version]
        return [*left, model.calls, model.seen, list(log), state["calls"], capsys.readouterr().out, told]

    expected = run(lambda model: model)
    assert same_bits(run(lambda model: gradc.compile(model, options=VERIFY)), expected)
    assert counted() == {"calls": 1, "backwards": 1}


def test_a_whole_step_is_verified():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = gradc.compile(step, options={"verify": 2})
    for _ in range(4):
        compiled(torch.randn(4, 3))
    assert counted()["calls"] >= 2
    assert "differences" not in counted()
    assert optimizer.state[model.weight]["step"] == 4


def test_what_cannot_be_copied_is_left_out_with_the_reason():
    def f(x: Tensor, numbers: Any) -> Tensor:
        return x * next(numbers)

    compiled = gradc.compile(f, options=VERIFY)
    assert compiled(torch.ones(2), (number for number in (2, 3))).tolist() == [2.0, 2.0]
    assert counted() == {"left out: a generator": 1}


def test_the_time_is_no_difference():
    def f(x: Tensor) -> tuple[Tensor, float]:
        return x * 2, time.perf_counter()

    gradc.compile(f, options=VERIFY)(torch.ones(2))
    assert counted() == {"calls": 1, "left out: eager itself gives another result when it runs again": 1}


def test_what_a_function_keeps_by_identity_is_no_difference():
    seen: dict[int, Tensor] = {}

    def f(x: Tensor) -> Tensor:
        seen[id(x)] = x
        return x * 2

    x = torch.ones(2)
    gradc.compile(f, options=VERIFY)(x)
    assert counted() == {"calls": 1}
    assert seen == {id(x): x}


def test_an_attribute_of_the_function_is_written_once():
    def f(x: Tensor) -> Tensor:
        f.calls += 1  # type: ignore[attr-defined]
        return x * f.calls  # type: ignore[attr-defined]

    f.calls = 0  # type: ignore[attr-defined]
    assert gradc.compile(f, options=VERIFY)(torch.ones(2)).tolist() == [1.0, 1.0]
    assert counted() == {"calls": 1}
    assert f.calls == 1  # type: ignore[attr-defined]


def test_state_of_two_parameters_under_one_name_is_copied_twice():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(x: Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()

    compiled = gradc.compile(step, options={"verify": 3})
    for _ in range(3):
        compiled(torch.randn(4, 3))
    assert "differences" not in counted()


def test_an_error_of_eager_s_is_the_user_s():
    def f(x: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        gradc.compile(f, options=VERIFY)(torch.ones(2))
    assert "differences" not in counted()


def test_a_hook_that_runs_inside_is_seen_once():
    seen: list[Tensor] = []
    x, w = leaves(3)
    x.register_hook(lambda grad: seen.append(grad))

    def slope(x: Tensor, w: Tensor) -> Tensor:
        return torch.autograd.grad((x * w).sin().sum(), x)[0]

    gradc.compile(slope, options=VERIFY)(x, w)
    assert counted() == {"calls": 1}
    assert len(seen) == 1


def test_a_backward_inside_that_goes_from_one_argument_to_another_is_left_out():
    x, w = leaves(3)

    def slope(x: Tensor, y: Tensor) -> Tensor:
        return torch.autograd.grad((x * y).sin().sum(), x)[0]

    gradc.compile(slope, options=VERIFY)(x, x.exp())
    assert counted() == {"left out: a backward inside, through what arguments were computed from": 1}


def test_arguments_that_lead_to_one_another_are_verified_where_no_backward_runs_inside():
    x, w = leaves(3)
    compiled = gradc.compile(product, options=VERIFY)
    compiled(x, x.exp()).sum().backward()
    assert counted() == {"calls": 1, "backwards": 1}


class Settings(dict):  # type: ignore[type-arg]
    calls = 0


@pytest.mark.parametrize("make", [types.SimpleNamespace, argparse.Namespace, Settings], ids=lambda make: make.__name__)
def test_an_object_with_nothing_but_attributes_is_counted_up_once(make):
    state = make()
    state.calls = 0

    def f(x: Tensor) -> Tensor:
        state.calls += 1
        return x * state.calls

    assert gradc.compile(f, options=VERIFY)(torch.ones(2)).tolist() == [1.0, 1.0]
    assert (state.calls, counted()) == (1, {"calls": 1})


def test_default_arguments_that_are_written_are_written_once():
    def scaled(x: Tensor, factor: float = 1.0, *, shift: float = 0.0) -> Tensor:
        return x * factor + shift

    def f(x: Tensor) -> Tensor:
        scaled.__defaults__ = (scaled.__defaults__[0] + 1,)  # type: ignore[index]
        scaled.__kwdefaults__["shift"] += 1
        return scaled(x)

    assert gradc.compile(f, options=VERIFY)(torch.ones(2)).tolist() == [3.0, 3.0]
    assert counted() == {"calls": 1}


def test_a_hook_of_all_modules_is_seen_once():
    seen: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        gradc.compile(nn.Sequential(nn.Tanh(), nn.ReLU()), options=VERIFY)(torch.ones(2))
    finally:
        handle.remove()
    assert seen == ["Tanh", "ReLU", "Sequential"]


def test_what_autocast_cast_before_the_call_is_no_difference():
    """Its cache knows the weight that came in, and not the copy."""
    x, w = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
    multiply = lambda x, w: x @ w
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", torch.float16):
            multiply(x, w)
        with pytest.raises(RuntimeError, match="same dtype"):  # as in eager
            gradc.compile(multiply, options=VERIFY)(x, w)
    assert counted() == {"calls": 1, "left out: copies do otherwise than what they were made of": 1}


@pytest.mark.parametrize("change", [lambda value: value.add_(1), lambda value: setattr(value, "data", value.data * 2)])
def test_what_a_backward_in_python_kept_by_itself_and_others_wrote_into_is_no_difference(change):
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.x = x
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * ctx.x

    x, w = leaves(3)
    y = gradc.compile(lambda x, w: Kept.apply(x) * w, options=VERIFY)(x, w)
    with torch.no_grad():
        change(x)
    y.sum().backward()
    assert "differences" not in counted()


def test_nothing_is_kept_of_a_step_that_is_over():
    class Bag:
        pass

    def step() -> weakref.ref[Bag]:
        x, w = leaves(3)
        y, bag = gradc.compile(product, options=VERIFY)(x, w), Bag()
        x.bag = bag  # type: ignore[attr-defined]
        y.sum().backward()
        return weakref.ref(bag)

    is_gone = step()
    gc.collect()
    assert is_gone() is None


def test_a_weight_that_the_user_casts_beside_autocast_is_no_difference():
    x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = gradc.compile(lambda x: (x.bfloat16() @ w.bfloat16()).tanh() + x @ w, options=VERIFY)(x)
    y.float().sum().backward()
    reason = "left out: gradient of a weight that is cast by autocast and otherwise, or before the call"
    assert counted() == {"calls": 1, reason: 1}


def test_a_backward_that_is_set_to_another_autocast_than_eager_s_is_no_difference():
    x, w = leaves(3, 3)
    with gradc.config.patch(backward_pass_autocast="off"):
        y = gradc.compile(lambda x, w: (x @ w).sin(), options=VERIFY)(x, w)
        with torch.autocast("cpu", torch.bfloat16):
            y.sum().backward()
    assert "differences" not in counted()


def test_off_it_is_not_there(monkeypatch):
    def unwanted(*_: Any) -> None:
        raise AssertionError("verified")

    monkeypatch.setattr("gradc.frontend.api.verified", unwanted)
    with gradc.config.patch(verify=0):
        gradc.compile(product)
        gradc.compile(nn.ReLU())


@pytest.mark.parametrize("number", [-1, True, "one", 1.5])
def test_a_wrong_number_of_calls_raises(number):
    with pytest.raises(gradc.ConfigError, match="verify="):
        gradc.compile(product, options={"verify": number})
