"""The order in which a call makes nodes, and so that of hooks, where some casts and views are made outside the segments."""

import functools

import pytest
import torch

from gradc.analysis.order import LiveNode, Made
from tests.analysis.taped import names_of, taped
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

    # A gradient that two nodes add to in place: gradc adds them up before it is the leaf's.
    check(step, *LEAVES, compare_counters=function is not with_an_early_output)


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


def a_view_between_two_stages(x):
    value = x.sin()
    view = value.view(-1)
    return value, view, x.cos()


def test_a_view_is_made_between_the_segments_that_eager_makes_it_between():
    analysed = taped(a_view_between_two_stages, torch.ones(2, 3, requires_grad=True))
    assert [names_of(segment.nodes) for segment in analysed.segments()] == [["Sin"], ["Cos"]]
    assert analysed.order() == (LiveNode(Made.SEGMENT, 0), LiveNode(Made.OUTPUT, 1), LiveNode(Made.SEGMENT, 1))


def test_what_a_call_makes_in_order_by_itself_needs_none():
    x, w = torch.ones(3, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True)
    assert taped(lambda x, w: (x @ w, (x @ w).sin()), x, w).order() == ()
    assert taped(lambda x: (value := x.sin(), value.view(-1)), x).order() == ()


def test_uses_before_a_view_of_an_input_get_a_detour():
    """The view is made before the region's own nodes; each earlier use goes through an alias that is made before it."""
    analysed = taped(with_a_returned_view, *(torch.ones(4, 4, requires_grad=True) for _ in NAMES))
    names = [primal.name for primal in analysed.hoisted.primals[4:]]
    assert names == [*(f"input_{number} for earlier uses" for number in (1, 0, 2)), "view of input_0"]
    assert {node.name() for node, _ in analysed.hoisted.detours} == {"MmBackward0", "MulBackward0"}
