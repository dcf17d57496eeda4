"""Hooks, autograd.Functions, checkpoints and callbacks run in a captured backward as in eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gradc
from gradc import compiled_autograd
from tests.capture.steps import Step, check, grads, leaf

pytestmark = pytest.mark.usefixtures("nothing_captured")


@pytest.mark.parametrize("kind", ["tensor", "leaf", "pre", "post", "accumulate", "retain", "multi"])
def test_hooks(kind: str) -> None:
    def make() -> Step:
        w = leaf(3)

        def step(i: int) -> Any:
            w.grad = None
            seen: list[Any] = []

            def hook(g: torch.Tensor) -> torch.Tensor | None:
                seen.append(g.clone())
                return g * (i + 1) if i % 2 else None

            x = w * 2
            y = x.exp()
            handles: list[Any] = []
            if kind == "tensor":
                handles.append(x.register_hook(hook))
            if kind == "leaf":
                handles.append(w.register_hook(hook))
            if kind == "pre":
                handles.append(y.grad_fn.register_prehook(lambda gs: tuple(g * i for g in gs)))
            if kind == "post":
                handles.append(y.grad_fn.register_hook(lambda outs, ins: tuple(g + i for g in outs)))
            if kind == "accumulate":
                handles.append(w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone())))
            if kind == "multi":
                handles.append(torch.autograd.graph.register_multi_grad_hook([x, y], lambda gs: seen.append(list(gs))))
            if kind == "retain":
                x.retain_grad()
            (y.sin() + x).sum().backward()
            result = [*grads(w), seen, x.grad.clone() if kind == "retain" and x.grad is not None else None]
            for handle in handles:
                handle.remove()
            return result

        return step

    check(make, steps=5)


def test_hook_that_drops_gradients() -> None:
    def make() -> Step:
        w, v = leaf(3), leaf(3, seed=1)
        total = torch.zeros(3)

        def step(i: int) -> Any:
            def drop(p: torch.Tensor) -> None:
                assert p.grad is not None
                total.add_(p.grad)
                p.grad = None

            handles = [w.register_post_accumulate_grad_hook(drop), v.register_post_accumulate_grad_hook(drop)]
            ((w * v).exp() * v).sum().backward()
            for handle in handles:
                handle.remove()
            return [total.clone(), w.grad, v.grad]

        return step

    check(make)


class Scale(torch.autograd.Function):
    factor = 1.0
    mode = ""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        if Scale.mode == "none":
            return None, grad * x * Scale.factor
        if Scale.mode == "transposed":
            return (grad * y).t().contiguous().t(), grad * x
        return grad * y * Scale.factor, grad * x


def test_function_with_changing_state() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            Scale.factor, Scale.mode = i + 1.0, ["", "none", "transposed"][i % 3]
            x, y = leaf(3, 3, seed=i), leaf(3, 3, seed=7)
            Scale.apply(x.sin(), y.cos()).exp().sum().backward()
            return grads(x, y)

        return step

    check(make, steps=7)
    assert gradc.counters["compiled_autograd"]["finished live"] >= 3


def test_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (True, False):

        def make() -> Step:
            layer = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh())

            def step(i: int) -> Any:
                layer.zero_grad()
                x = leaf(2, 3, seed=i)
                y = checkpoint(layer, layer(x).sin(), use_reentrant=reentrant)
                y.exp().sum().backward()
                return grads(x, *layer.parameters())

            return step

        compiled_autograd.reset()
        check(make, captures=None)


def test_saved_tensors_hooks() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2 + i):
                y = x.sin().exp()
            (y * x).sum().backward()
            return grads(x)

        return step

    check(make)


def test_create_graph_is_left_to_the_engine() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            (g,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
            g.square().sum().backward()
            return grads(x)

        return step

    check(make, fallbacks=("create_graph",))


def test_hook_error_passes() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3)
            y = x * 2

            def fail(g: torch.Tensor) -> None:
                raise ValueError("mine")

            y.register_hook(fail)
            with pytest.raises(ValueError, match="mine"):
                y.sum().backward()
            return grads(x)

        return step

    check(make, captures=None)


def test_final_callbacks() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x, called = leaf(3), list[str]()

            def hook(g: torch.Tensor) -> None:
                torch.autograd.Variable._execution_engine.queue_callback(lambda: called.append(str(x.grad is None)))

            y = x * 2
            y.register_hook(hook)
            y.sum().backward()
            return [called, *grads(x)]

        return step

    check(make)


def test_reentrant_checkpoint_under_inputs_raises_as_eager() -> None:
    from torch.utils.checkpoint import checkpoint

    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            with pytest.raises(RuntimeError, match="use_reentrant"):
                torch.autograd.grad(checkpoint(torch.sin, x * 2, use_reentrant=True).sum(), [x])
            return grads(x)

        return step

    check(make, captures=None)


def test_inner_accumulation_by_a_checkpoint_is_seen() -> None:
    """A reentrant pass gives the weight a gradient before the outer pass does."""
    from torch.utils.checkpoint import checkpoint

    def make() -> Step:
        w = leaf(3)

        def step(i: int) -> Any:
            w.grad = None
            x = leaf(3, seed=i)
            y = checkpoint(lambda v: v * w.sin(), x * w, use_reentrant=True)
            (y * w).sum().backward()
            return grads(w, x)

        return step

    check(make, captures=None)


@pytest.mark.parametrize("whole", [True, False])
def test_hooks_along_a_gradient_are_given_one_tensor_object(whole: bool) -> None:
    """A node's hooks see what they hand on, and the next node's are given that: at a capture, too."""

    def make() -> Step:
        def step(i: int) -> Any:
            w, seen = leaf(2, 2, seed=i), list[Any]()
            x = w.squeeze()
            y = x.exp()
            w.register_hook(seen.append)
            x.register_hook(seen.append)
            x.grad_fn.register_prehook(lambda given: seen.append(given[0]))
            x.grad_fn.register_hook(lambda made, given: seen.extend([made[0], given[0]]))
            y.grad_fn.register_hook(lambda made, given: seen.append(made[0]))
            loss = y.square().sum()
            if whole:
                loss.backward()
            else:
                seen.extend(torch.autograd.grad(loss, w))
            return [*seen, torch.tensor([[one is another for one in seen] for another in seen]), *grads(w)]

        return step

    check(make)
