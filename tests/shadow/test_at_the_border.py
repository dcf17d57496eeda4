"""What lies between a verified call and the rest of the program: views written into later, hooks, casts, subclasses."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import gradc
from gradc.bits import same_bits
from gradc.errors import DifferenceWarning
from tests.shadow.test_verify import VERIFY, counted, leaves, nothing_counted, perturbing

__all__ = ["nothing_counted"]  # a fixture


def a_view_and_what_is_made_of_it(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    view = (x * 3).view(-1)
    return view, (view * 0.3 + w).sin()


@pytest.mark.parametrize("write", [lambda view: view, lambda view: view.mul_(2), lambda view: view[1:].mul_(2)])
def test_a_view_that_is_written_into_later_is_no_difference(write):
    """What others do to it then goes into what it is a view of, and not into the view that came out."""
    x, w = leaves(4)
    view, other = gradc.compile(a_view_and_what_is_made_of_it, options=VERIFY)(x, w)
    write(view)
    (view.cos().sum() + other.square().sum()).backward()
    assert counted() == {"calls": 1, "backwards": 1}


def test_a_bit_is_found_in_the_backward_of_a_view_that_was_written_into():
    perturbing("one_bit_behind_a_view", is_backward=True)
    x, w = leaves(4)
    view, other = gradc.compile(a_view_and_what_is_made_of_it, backend="one_bit_behind_a_view", options=VERIFY)(x, w)
    view.mul_(2)
    with pytest.warns(DifferenceWarning, match=r"gradient of [xw]: element"):
        (view.cos().sum() + other.square().sum()).backward()


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.exp()], ids=["leaf", "computed"])
def test_a_hook_that_the_call_puts_on_what_came_in_is_no_difference(make):
    def hooked(x: Tensor, w: Tensor) -> Tensor:
        x.register_hook(lambda grad: grad * 2)
        return x * w

    x, w = leaves(3)
    gradc.compile(hooked, options=VERIFY)(make(x), w).sum().backward()
    assert counted() == {"calls": 1, "backwards": 1}


def test_a_weight_that_autocast_cast_before_the_call_is_left_out():
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        before = x @ w
        y = gradc.compile(lambda x, w: x @ w + w.sum(), options=VERIFY)(x, w)
    (before + y).float().sum().backward()
    reason = "left out: gradient of a weight that is cast by autocast and otherwise, or before the call"
    assert counted() == {"calls": 1, reason: 1}


class Seen(Tensor):
    """Notes what is asked of it."""

    names: list[str] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.names.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_subclass_is_left_out_before_it_is_asked_anything():
    seen = torch.ones(3).as_subclass(Seen)
    Seen.names.clear()
    gradc.compile(lambda x, seen: x.sin(), options=VERIFY)(torch.ones(3), seen)
    assert counted() == {"left out: a tensor subclass": 1} and not Seen.names


def cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).sum()


class RaisesInCopies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if torch._dynamo.eval_frame._stance.stance == "force_eager":
            raise RuntimeError("runs in eager's copy")
        return grad


def test_what_eager_s_copy_of_a_backward_raises_is_not_the_user_s():
    x = torch.ones(3, requires_grad=True)
    gradc.compile(lambda x: (RaisesInCopies.apply(x.sin()) * 2).sum(), options=VERIFY)(x).backward()
    assert same_bits(x.grad, 2 * torch.ones(3).cos())
    assert any("in eager's copy" in reason for reason in counted())


def test_cond_is_verified():
    """It compiles itself in eager, and raised in eager's copy, where nothing was to be compiled."""
    x = torch.ones(3, requires_grad=True)
    gradc.compile(cond, options=VERIFY)(x).backward()
    assert same_bits(x.grad, torch.autograd.grad(cond(x), x)[0])
    assert counted() == {"calls": 1, "backwards": 1}


def test_a_weight_that_the_call_freezes_is_verified():
    weight = torch.ones(3, requires_grad=True)

    def frozen(x: Tensor) -> Tensor:
        y = x * weight
        weight.requires_grad_(False)
        return y

    x, _ = leaves(3)
    gradc.compile(frozen, options=VERIFY)(x).sum().backward()
    assert counted() == {"calls": 1, "backwards": 1} and not weight.requires_grad


def test_a_weight_that_a_wrong_call_freezes_is_eager_s():
    perturbing("one_bit_frozen", is_backward=False)
    weight = torch.ones(3, requires_grad=True)

    def frozen(x: Tensor) -> Tensor:
        weight.requires_grad_(False)
        return x * 3 * weight

    x, _ = leaves(3)
    with pytest.warns(DifferenceWarning, match="This call's result is eager's"):
        found = gradc.compile(frozen, backend="one_bit_frozen", options=VERIFY)(x)
    assert same_bits(found, x * 3 * weight) and not weight.requires_grad


def test_a_scripted_function_is_left_out():
    """Its executor looks on at first: what it computes may differ from call to call."""

    def scripted(x: Tensor) -> Tensor:
        return (x * 0.5).tanh() + x

    scripted = torch.jit.script(scripted)
    gradc.compile(lambda x: scripted(x).sin(), options=VERIFY)(torch.ones(3))
    assert counted() == {"left out: TorchScript": 1}


SEEN: list[str] = []


class Lazy:
    @functools.cached_property
    def factor(self) -> float:
        SEEN.append("computed")
        return 2.0


def test_what_a_property_that_is_kept_writes_is_written_once():
    SEEN.clear()
    lazy = Lazy()
    gradc.compile(lambda x: x * lazy.factor, options=VERIFY)(torch.ones(3))
    assert SEEN == ["computed"] and counted() == {"calls": 1}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def test_gradients_that_are_added_to_others_are_verified_behind_a_formula_in_python():
    x, w = leaves(3)
    x.grad, w.grad = torch.ones(3), torch.ones(3)
    gradc.compile(lambda x, w: Doubled.apply(x) * w, options=VERIFY)(x, w).sum().backward()
    assert counted() == {"calls": 1, "backwards": 1}


def test_a_backward_compiled_as_one_graph_may_be_watched():
    """Dynamo met a generator of Python's library that gradc's own hook called, and fullgraph=True made an error of it."""
    x, w = leaves(4)
    loss = gradc.compile(lambda x, w: (x * w).sin().sum(), options=VERIFY)(x, w)
    gradc.compile(lambda: loss.backward(), fullgraph=True)()
    assert not gradc.counters["uncompiled"] and not gradc.counters["fallbacks"]
