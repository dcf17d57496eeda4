"""A region whose function makes the same values over and over: as eager, whoever holds them, whatever is written into them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import gradc
from tests.compilers import Compiler
from tests.oracle import check, leaf


def part(x, w):
    return F.silu(x @ w).tanh()


def twice(x, w):
    return part(x, w) * part(x, w) + part(x, w).sin()


def slope(x, w):
    """A derivative repeats what the forward made, and the second derivative both."""
    (grad,) = torch.autograd.grad(part(x, w).sum() + part(x, w).square().sum(), x, create_graph=True)
    return grad.square().sum() + part(x, w).sum()


@pytest.mark.parametrize("function", [twice, slope])
def test_backward(compiler: Compiler, function):
    def step(compile, x, w):
        result = compile(function)(x, w)
        result.sum().backward()
        return result

    check(step, leaf(5, 4), leaf(4, 4), compiler=compiler)


@pytest.mark.parametrize("function", [twice, slope])
def test_backward_of_backward(compiler: Compiler, function):
    def step(compile, x, w):
        result = compile(function)(x, w)
        (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        first.square().sum().backward(retain_graph=True)
        first.sum().backward()
        return result, first

    check(step, leaf(5, 4), leaf(4, 4), compiler=compiler)


@pytest.mark.parametrize("written", [0, 1, 2])
def test_what_is_returned_twice_can_be_written_into(compiler: Compiler, written):
    def step(compile, x, w):
        results = compile(lambda x, w: (part(x, w), part(x, w), part(x, w).exp()))(x, w)
        with torch.no_grad():
            results[written][0] += 1
        errors = []
        try:
            sum(result.sum() for result in results).backward()
        except RuntimeError as error:
            errors.append(type(error).__name__)
        return *results, errors

    check(step, leaf(5, 4), leaf(4, 4), compiler=compiler)


class Doubling(torch.autograd.Function):
    """Writes into what it saved, which is its own."""

    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result * 1

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * result.mul_(2)


class Keeping(torch.autograd.Function):
    """Keeps a tensor by itself, and writes into it."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.detach().exp()
        return ctx.kept * 1

    @staticmethod
    def backward(ctx, grad):
        ctx.kept.mul_(2)
        return grad * ctx.kept


@pytest.mark.parametrize("function", [Doubling, Keeping])
def test_what_a_function_of_the_users_saved_is_its_own(compiler: Compiler, function):
    def step(compile, x):
        result = compile(lambda x: x.exp().sin() + function.apply(x) + x.exp().cos())(x)
        result.sum().backward(retain_graph=True)
        first = x.grad.clone()
        result.sum().backward()
        return result, first

    check(step, leaf(5, 4), compiler=compiler)


def test_inside_of_saved_tensors_hooks(compiler: Compiler):
    def step(compile, x, w):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double() * 1.25, lambda kept: kept.float()):
            result = compile(twice)(x, w)
        result.sum().backward()
        return result

    check(step, leaf(5, 4), leaf(4, 4), compiler=compiler)


def test_hooks_on_values_in_between(compiler: Compiler):
    def hooked(x, w):
        first, second = part(x, w), part(x, w)
        second.register_hook(lambda grad: grad * 2)
        return first.sin() + second.sin()

    def step(compile, x, w):
        result = compile(hooked)(x, w)
        result.sum().backward()
        return result

    check(step, leaf(5, 4), leaf(4, 4), compiler=compiler)


@pytest.mark.parametrize("backend", ["replay", "inductor"])
@pytest.mark.parametrize("function", [twice, slope])
def test_each_value_is_made_once(backend, function):
    """Three products of the forward are one, and gradients of both orders still lead where they did."""
    x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    compiled = gradc.compile(function, backend=backend)
    grads = []
    for run in (compiled, function):
        (first,) = torch.autograd.grad(run(x, w).sum(), x, create_graph=True)
        grads.append((first, *torch.autograd.grad(first.square().sum(), (x, w))))
    for ours, eagers in zip(*grads, strict=True):
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-4)
    if backend == "replay" and function is twice:
        (captured,) = gradc.programs(function)(x, w)[:1]
        assert [str(call.op) for call in captured.program.instructions].count("aten.mm.default") == 1
