"""Gradients of a captured backward are laid out, and share memory, as eager's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from gradc import compiled_autograd
from tests.capture.steps import Step, check, grads, leaf

pytestmark = pytest.mark.usefixtures("nothing_captured")


def test_stealing_and_sharing() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            a, b, c = leaf(3), leaf(3), leaf(3, 1)
            g = torch.ones(3)
            (a + b + c.view(3)).backward(g)
            assert a.grad is not None and b.grad is not None and c.grad is not None
            pointers = [t.data_ptr() for t in (a.grad, b.grad, c.grad, g)]
            aliases = [pointers.index(pointer) for pointer in pointers]
            return [a.grad.clone(), b.grad.clone(), c.grad.clone(), aliases]

        return step

    check(make)


def test_sharing_of_inner_gradient() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            a, b, c = leaf(3), leaf(3), leaf(3, 1)
            (a + b + c.view(3)).exp().sum().backward()
            assert a.grad is not None and b.grad is not None and c.grad is not None
            pointers = [t.data_ptr() for t in (a.grad, b.grad, c.grad)]
            return [a.grad.clone(), c.grad.clone(), [pointers.index(pointer) for pointer in pointers]]

        return step

    check(make)


def test_layout_of_gradients() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            a, b = leaf(3, 4), leaf(4, 3)
            (a.t() @ b.t()).sum().backward()
            conv = nn.Conv2d(2, 2, 1).to(memory_format=torch.channels_last)
            conv(torch.ones(1, 2, 3, 3)).sum().backward()
            return [*grads(a, b), *grads(*conv.parameters())]

        return step

    check(make, captures=None)


def test_gradients_that_are_one_tensor_stay_one_object() -> None:
    """Also where a hooked node returned them. Found by the fuzzer."""
    for _ in range(3):
        x, y = leaf(3), leaf(3, seed=1)
        total = x + y
        total.retain_grad()
        with compiled_autograd.enable():
            first, second = torch.autograd.grad(total.sin().sum(), (x, y))
        assert first is second
    assert gradc.counters["compiled_autograd"] == {"captures": 1, "hits": 2}


def test_strides_where_eager_adds_in_place_to_what_a_hooked_node_returned() -> None:
    """In a dimension of size 1 a sum has other strides. Found by the fuzzer."""

    def make() -> Step:
        def step(_: int) -> Any:
            x = leaf(2, 1, 2)
            noise = torch.empty_strided((2, 1, 2), (1, 2, 2)).fill_(0.5)
            early = x.transpose(0, -1) * noise
            late = x.exp()
            late.register_hook(lambda grad: grad * 2)
            (early.transpose(0, -1) * 3 + late).sum().backward()
            return x.grad

        return step

    check(make)


@pytest.mark.parametrize("is_first_kept", [False, True])
def test_strides_where_a_hook_keeps_what_eager_adds_to_on_another_run(is_first_kept: bool) -> None:
    """Eager then makes a sum, with other strides in the dimension of size 1: the recording looks who has it."""
    kept = []

    def make() -> Step:
        def step(i: int) -> Any:
            def hook(grads: Any, _: Any) -> Any:
                made = torch.empty_strided((1, 3), (1, 1)).copy_(grads[0])
                kept.extend([made] if i % 2 != is_first_kept else [])
                return (made,)

            x = leaf(1, 3)
            early, late = x.sin(), x.exp()
            assert late.grad_fn is not None
            late.grad_fn.register_hook(hook)
            (grad,) = torch.autograd.grad((early + late).sum(), x)
            assert grad.stride() == ((3, 1) if i % 2 != is_first_kept else (1, 1))
            return grad

        return step

    check(make)
    assert gradc.counters["compiled_autograd"]["finished live"] == 2


@pytest.mark.parametrize("compile", [lambda function: function, gradc.compile])
def test_strides_where_a_node_hands_on_its_gradient(compile: Callable[..., Any]) -> None:
    """A leaf steals it, and its strides in a dimension of size 1, unless somebody else holds it. Found by the fuzzer."""

    def make() -> Step:
        f = compile(lambda x, y: (x + y).mT)

        def step(i: int) -> Any:
            x, y, kept = leaf(2, 1), leaf(2, 1, seed=1), []
            out = f(x, y)
            if i % 2:
                out.grad_fn.next_functions[0][0].register_prehook(lambda grads: kept.append(grads))
            (out * 2).sum().backward()
            return x.grad, y.grad, x.grad.stride(), y.grad.stride()

        return step

    check(make, captures=None)


def test_strides_behind_an_opaque_node() -> None:
    """Found by the fuzzer."""

    def make() -> Step:
        def step(_: int) -> Any:
            x = leaf(2, 1)
            y = x.cumprod(0).view_as(x)
            torch.dropout(y.mT, 0.5, True).sum().backward()
            return x.grad, x.grad.stride()

        return step

    check(make)


def test_strides_of_a_sum_of_two_slices_of_a_gradient() -> None:
    """Both with strides in a dimension of size 1 that no fresh tensor has. Found by the fuzzer."""

    def make() -> Step:
        f = gradc.compile(lambda x, y: -(torch.stack([x, y, x], 1) / 9))

        def step(_: int) -> Any:
            x = leaf(1, 3)
            f(x, leaf(1, 3).detach().double()).sum().backward()
            assert x.grad is not None and x.grad.stride() == (9, 1)
            return x.grad

        return step

    check(make)


def test_strides_of_the_gradient_of_masked_select() -> None:
    """Its formula takes another way while a mode records, and loses the strides of a transposed input. Found by the fuzzer."""

    def make() -> Step:
        def step(_: int) -> Any:
            x = leaf(2, 4)
            y = x.mT
            (grad,) = torch.autograd.grad(y.masked_select(y > 0).sum(), y)
            assert grad.stride() == (1, 4)
            return grad

        return step

    check(make)


def test_strides_of_the_gradient_of_ormqr() -> None:
    """Its formula calls householder_product, whose kernel lays out its result by itself."""

    def make() -> Step:
        reflectors = leaf(5, 5).detach().mT.requires_grad_()  # by columns, as geqrf gives them
        scales, other = leaf(5, seed=1), leaf(5, 5, seed=2)
        return lambda i: torch.autograd.grad(torch.ormqr(reflectors, scales, other).sum(), [reflectors, scales, other])

    check(make)
