"""torch.autograd.grad and ``inputs=``: a pass for some tensors only, whose hooks and Functions run as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gradc
from gradc import compiled_autograd
from tests.capture.steps import Step, check, grads, leaf

pytestmark = pytest.mark.usefixtures("nothing_captured")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        assert ctx.needs_input_grad == (True,)
        return grad * 2


@pytest.mark.parametrize("asked", ["leaf", "inside", "both"])
@pytest.mark.parametrize("kind", ["changes", "looks", "retains", "pre", "post"])
def test_hook_on_what_is_asked_for(kind: str, asked: str) -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x, seen = leaf(3, seed=i), list[Any]()

            def hook(grad: torch.Tensor) -> torch.Tensor | None:
                seen.append(grad.clone())
                return grad * (i + 2) if kind == "changes" else None

            hidden = x.exp()
            for tensor in (x, hidden):
                if kind == "retains" and tensor is hidden:
                    tensor.retain_grad()
                elif kind == "pre" and tensor is hidden:
                    tensor.grad_fn.register_prehook(lambda gs: tuple(g * 3 for g in gs))
                elif kind == "post" and tensor is hidden:
                    tensor.grad_fn.register_hook(lambda outs, ins: tuple(g + 3 for g in outs))
                else:
                    tensor.register_hook(hook)
            wanted = {"leaf": [x], "inside": [hidden], "both": [hidden, x]}[asked]
            results = torch.autograd.grad(hidden.sin().sum(), wanted)
            return [*results, *seen, hidden.grad if hidden.retains_grad else None, x.grad]

        return step

    check(make)


def test_hook_that_returns_another_tensor_today() -> None:
    def make() -> Step:
        kept = torch.ones(3, 3)

        def step(i: int) -> Any:
            x = leaf(3, 3, seed=i)
            x.register_hook(lambda grad: kept if i % 2 else grad.t() if i == 2 else None)
            (grad,) = torch.autograd.grad((x.sin() * x).sum(), x)
            return [grad.clone(), grad is kept]

        return step

    check(make, captures=1)


def test_hook_that_writes_into_what_is_asked_for() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            y = x.sin()
            y.register_hook(lambda grad: grad.mul_(2))
            return torch.autograd.grad((y * y).sum(), (y, x))

        return step

    check(make)


def test_hook_put_on_what_is_asked_for_by_another_hook() -> None:
    """At the first step there is none, at later ones it comes while the pass is under way."""

    def make() -> Step:
        def step(i: int) -> Any:
            x, seen = leaf(3, seed=i), list[torch.Tensor]()
            y = x.sin()

            def hook(grad: torch.Tensor) -> None:
                if i > 0:
                    x.register_hook(lambda grad: seen.append(grad.clone()) or grad * 5)

            y.register_hook(hook)
            return [*torch.autograd.grad(y.exp().sum(), x), *seen]

        return step

    check(make)


def test_hook_on_what_is_asked_for_at_other_sizes() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3 + i, 2, seed=i)
            hidden = x.exp()
            hidden.register_hook(lambda grad: grad * 2)
            return torch.autograd.grad((hidden * hidden).sum(), hidden)

        return step

    check(make, captures=None)
    assert gradc.counters["compiled_autograd"]["made dynamic"] == 1


@pytest.mark.parametrize("way", ["grad", "inputs", "asked for itself"])
def test_function_under_inputs(way: str) -> None:
    def make() -> Step:
        w = leaf(3)

        def step(i: int) -> Any:
            w.grad = None
            x = leaf(3, seed=i)
            doubled = Doubled.apply(x.sin())
            loss = (doubled * w).sum()
            if way == "inputs":
                loss.backward(inputs=[x])
                return grads(x, w)
            return torch.autograd.grad(loss, doubled if way == "asked for itself" else x)

        return step

    check(make)


def test_a_pass_that_raises_is_eagers_error_under_fullgraph() -> None:
    x = leaf(3)
    loss = x.exp().sum()
    with compiled_autograd.enable(gradc.compile(fullgraph=True)):
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(3).sum().backward()
    assert not gradc.counters["fallbacks"]


def test_gradients_that_are_one_tensor_are_one_after_two_boundaries() -> None:
    """``grad(loss, (t, a))`` with ``t = a + 0``: a hook on either made the first capture's results two tensors."""

    def make() -> Step:
        def step(i: int) -> Any:
            a = leaf(2, 2, seed=i)
            t = torch.zeros(()) + a
            a.register_post_accumulate_grad_hook(lambda param: None)
            t.retain_grad()
            results = torch.autograd.grad((t * t.detach()).sum(), (t, a))
            return [*results, torch.tensor(results[0] is results[1])]

        return step

    check(make)


def test_a_hook_on_what_is_asked_for_gets_the_tensor_that_is_returned() -> None:
    """A sum over one row hands its gradient on; hooks on both sides of it see the one tensor that is the result."""

    def make() -> Step:
        def step(i: int) -> Any:
            c, seen = leaf(1, 2, seed=i), list[Any]()
            t = c.cumsum(0)
            t.register_hook(seen.append)
            c.register_hook(seen.append)
            (result,) = torch.autograd.grad(t.square().sum(), c)
            return [result, *seen, torch.tensor([result is each for each in seen])]

        return step

    check(make)


def test_a_node_behind_a_boundary_gets_the_tensor_that_is_returned() -> None:
    """``prod`` looks at data, so its node runs live; that of ``squeeze`` sends on what it is given, and a hook keeps it."""

    def make() -> Step:
        def step(i: int) -> Any:
            w, seen = leaf(2, 2, seed=i), list[Any]()
            x = w.squeeze()
            x.register_hook(seen.append)
            (grad,) = torch.autograd.grad(x.prod(0).square().sum(), w)
            return [grad, torch.tensor(grad is seen[0])]

        return step

    check(make)
