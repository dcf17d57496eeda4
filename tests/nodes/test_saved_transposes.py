"""A linear layer saves its weight's transpose, which a segment makes when it reads it. Nothing that eager does may differ."""

import gc
import weakref

import pytest
import torch
from torch import nn

import gradc
from gradc import native
from gradc.bits import same_bits
from gradc.region.region import Region


def linear(x, w):
    return torch.nn.functional.linear(torch.nn.functional.linear(x, w).tanh(), w).sin()


def given_and_shown(x, w):
    """The transpose is an output, too."""
    transposed = w.t()
    return x @ transposed, transposed


def two_segments(x, w):
    """The transpose is made in one segment and saved by two."""
    transposed = w.t()
    inner = x @ transposed
    return inner, (inner.sin() @ transposed).tanh()


def mixed(x, w):
    """A transpose of a transpose, one of a part, and one of what was made here."""
    return (x @ w.t().t()) @ w[:2].t() @ (w[:2] * 2).t().t() @ w.T


PROGRAMS = pytest.mark.parametrize("program", [linear, given_and_shown, two_segments, mixed])
COMPILERS = (lambda function: function, gradc.compile)


def inputs(**options):
    torch.manual_seed(0)
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True, **options)


def outputs_of(value):
    return value if isinstance(value, tuple) else (value,)


def both(function):
    """``function(compile)`` three times with gradc: each time what it gives in eager."""
    eager = function(COMPILERS[0])
    for _ in range(3):
        assert same_bits(function(COMPILERS[1]), eager)


@PROGRAMS
def test_orders(program):
    def gradients(compile):
        x, w = inputs()
        total = sum(out.square().sum() for out in outputs_of(compile(program)(x, w)))
        first = torch.autograd.grad(total, (x, w), create_graph=True)
        second = torch.autograd.grad(sum(each.square().sum() for each in first), (x, w), create_graph=True)
        third = torch.autograd.grad(sum(each.sum() for each in second), (x, w))
        return [each.detach() for each in (*first, *second, *third)]

    both(gradients)


def test_orders_without_the_extension(monkeypatch):
    monkeypatch.setattr(native, "is_built", lambda: False)
    test_orders(linear)
    test_the_error_about_a_weight_that_was_written_into(True)


@PROGRAMS
def test_a_weight_that_needs_no_gradient(program):
    def gradients(compile):
        x, w = inputs()
        total = sum(out.square().sum() for out in outputs_of(compile(program)(x, w.detach())))
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        return first.detach(), *torch.autograd.grad(first.sum(), x)

    both(gradients)


@PROGRAMS
def test_backward_twice(program):
    def gradients(compile):
        x, w = inputs()
        total = sum(out.square().sum() for out in outputs_of(compile(program)(x, w)))
        total.backward(retain_graph=True)
        total.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            total.backward()
        return x.grad, w.grad

    both(gradients)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_the_error_about_a_weight_that_was_written_into(is_frozen):
    def errors(compile):
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4).requires_grad_(not is_frozen))
        out = compile(net)(torch.ones(2, 4))
        with torch.no_grad():
            net[2].weight.mul_(2)
        with pytest.raises(RuntimeError) as error:
            out.sum().backward()
        return str(error.value)

    both(errors)


def other_data(w):
    w.data = torch.full((4, 4), 7.0)


def other_memory(w):
    w.data.set_(torch.full((4, 4), 7.0))


def other_strides(w):
    w.data.t_()


def written_behind(w):
    w.data.mul_(2)  # no version tells of it: eager reads what is there now


@pytest.mark.parametrize("change", [other_data, other_memory, other_strides, written_behind])
def test_what_is_done_to_the_weight_itself(change):
    """Before backward. Eager has saved a view, which goes on to show the memory as it was laid out."""

    def gradients(compile):
        x, w = inputs()
        hidden = compile(lambda x, w: torch.nn.functional.linear(x, w).tanh())(x, w)
        change(w)
        return torch.autograd.grad(hidden.sum(), (x,))

    both(gradients)


def test_the_memory_of_a_weight_dies_when_backward_is_done():
    def is_alive(compile):
        x, w = inputs()
        memory = w.detach()
        out = compile(lambda x, w: torch.nn.functional.linear(x, w * 1).tanh())(x, w)
        alive = weakref.ref(memory.untyped_storage())
        del w, memory
        gc.collect()
        out.sum().backward()
        gc.collect()
        return alive() is None

    both(is_alive)


def test_hooks_see_what_eager_saves():
    def packed(compile):
        x, w = inputs()
        seen = []

        def pack(tensor):
            seen.append(tensor.detach().clone())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = compile(linear)(x, w)
        out.sum().backward()
        return seen, x.grad, w.grad

    both(packed)


def test_a_weight_from_inference_mode_is_refused_as_in_eager():
    def error(compile):
        x, _ = inputs()
        with torch.inference_mode():
            w = torch.ones(4, 4)
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            compile(lambda x, w: torch.nn.functional.linear(x, w).tanh())(x, w)
        return True

    both(error)


def regions():
    return [each for each in gc.get_objects() if type(each) is Region]


def test_no_program_returns_it():
    before = set(map(id, regions()))
    run = gradc.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
    run(torch.ones(2, 4)).sum().backward()
    (region,) = [region for region in regions() if id(region) not in before]
    assert len(region.returned.transposed) == 1
    assert len(region.forward.outputs) == 2  # the output, and what the tanh made
