"""Hooks run in eager's order where casts of weights and views of inputs are made outside the region's own nodes."""

import functools

import pytest
import torch

from tests.oracle import check, leaf

NAMES = "xwvb"
LEAVES = [leaf(4, 4)] * 4


def with_casts(x, w, v, b):
    h = (x @ w) * v
    return (h @ b) + v + b.sum(), h


def with_a_returned_view(x, w, v, b):
    h = (x @ w) * v
    view = x.view(-1)
    return (h @ b) + v, view


def with_an_early_output(x, w, v, b):
    early = x.roll(1, 0)
    return (early @ w) * v.cos() + b, early


def note(events, name, grad):
    events.append((name, grad.clone()))


@pytest.mark.parametrize("backend", ["replay", "eager"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("are_hooks_first", [True, False])
@pytest.mark.parametrize("function", [with_casts, with_a_returned_view, with_an_early_output])
def test_order(function, are_hooks_first, dtype, backend):
    def step(compile, *leaves):
        events = []

        def add_hooks():
            for name, tensor in zip(NAMES, leaves):
                tensor.register_hook(functools.partial(note, events, name))

        if are_hooks_first:
            add_hooks()
        f = compile(function, backend=backend)
        for _ in range(2):
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                outs = f(*leaves)
            if not events and not are_hooks_first:
                add_hooks()
            outs[1].register_hook(functools.partial(note, events, "out"))
            sum(out.float().sin().sum() for out in outs).backward()
        return events

    check(step, *LEAVES)


def test_order_when_the_cache_holds_some_of_the_casts():
    def step(compile, *leaves):
        events = []
        for name, tensor in zip(NAMES, leaves):
            tensor.register_hook(functools.partial(note, events, name))
        x, w, v, b = leaves
        f = compile(with_casts)
        with torch.autocast("cpu", torch.bfloat16):
            before = x @ b
            outs = [before, *f(x, w, v, b), *f(b, w, v, x)]
        sum(out.float().sin().sum() for out in outs).backward()
        return events

    check(step, *LEAVES)


def test_a_lazily_conjugate_gradient_is_not_added_to_in_place():
    """Second order of a quotient: eager's conjugates are views, so their sum is a tensor of its own."""

    def step(compile, a, b, tangent):
        first = torch.autograd.grad(compile(torch.div)(a, b), (a, b), tangent, create_graph=True)
        return torch.autograd.grad(first, (a, b, tangent), [torch.ones_like(gradient) for gradient in first])

    check(step, *[leaf(3, dtype=torch.complex64)] * 3)
