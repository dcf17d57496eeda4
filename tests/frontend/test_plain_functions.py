"""Under ``fullgraph=True`` a plain autograd.Function is part of the region; any other is refused, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradc
from gradc.torch_private.plain_functions import is_plain
from tests.compilers import find
from tests.oracle import check, constant, leaf

FACTOR = 2.0


class Scaled(Function):
    """Saves an argument and a result, keeps a number and a tensor on ctx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        out = x.exp() * factor
        ctx.save_for_backward(x, out)
        ctx.factor, ctx.doubled = factor, x * 2
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, out = ctx.saved_tensors
        return grad * out * torch.cos(x) * ctx.factor + ctx.doubled, None


class Sorted(Function):
    """Two results, one without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Any:
        product, order = x @ w, x.argsort()
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(x, w)
        return product, order

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


class Turned(Function):
    """Returns its argument; its gradient is another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


class Both(Function):
    """Two results with gradients, of which one may be missing; asks what is needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Any:
        x, y = ctx.saved_tensors
        of_x = first * y + second if ctx.needs_input_grad[0] else None
        return of_x, first * x + second if ctx.needs_input_grad[1] else None


PROGRAMS = {
    "saved": lambda x, w: Scaled.apply(x * 2, 3.0).sin() * w,
    "two_results": lambda x, w: Scaled.apply(Sorted.apply(x, w)[0], 2.0) + Sorted.apply(x, w)[1],
    "one_unused": lambda x, w: Both.apply(x, w.exp())[1] * x,
    "one_without_gradient": lambda x, w: Both.apply(x.detach(), w)[0] * x,
    "of_another": lambda x, w: Scaled.apply(Both.apply(Scaled.apply(x, 1.0), w)[0], 2.0),
}


def step(compile: Any, program: Any, order: int, x: Tensor, w: Tensor) -> Any:
    run = compile(program, fullgraph=True)
    out = run(x, w)
    found = torch.autograd.grad(out.sum(), [x, w], create_graph=order > 1, allow_unused=True)
    if order > 1:
        found += torch.autograd.grad(sum(g.sin().sum() for g in found if g is not None), [x, w], allow_unused=True)
    with torch.no_grad():
        return out, found, run(x, w)


@pytest.mark.parametrize("compiler", [find("gradc"), find("gradc:eager"), find("gradc_captured")], ids=lambda one: one.name)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_plain_functions_are_compiled(program: Any, order: int, compiler: Any) -> None:
    report = check(lambda compile, x, w: step(compile, program, order, x, w), leaf(4, 4), leaf(4, 4), compiler=compiler)
    assert report.num_graphs > 0


def test_under_autocast_around_backward() -> None:
    def train(compile: Any, x: Tensor, w: Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            out = compile(PROGRAMS["two_results"], fullgraph=True)(x, w)
            out.float().sum().backward()

    check(train, leaf(4, 4), leaf(4, 4))


@pytest.mark.parametrize("is_first", [True, False])
def test_under_autocast_that_keeps_casts(is_first: bool) -> None:
    """A copy that the Function makes of a weight has no history, and autocast keeps it."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        before = 0 if is_first else x @ w
        return Sorted.apply(x, w)[0] + x @ w + before

    def train(compile: Any, x: Tensor, w: Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            out = compile(function, fullgraph=True)(x, w)
        out.float().sum().backward()

    check(train, leaf(4, 4), leaf(4, 4))


def test_what_was_written_into_is_noticed() -> None:
    def train(compile: Any, x: Tensor, w: Tensor) -> None:
        root = w * 2
        out = compile(lambda x, w: Sorted.apply(x, w)[0], fullgraph=True)(x, root)
        root.add_(1)
        out.sum().backward()

    check(train, leaf(4, 4), leaf(4, 4))


class ReadsAGlobal(Turned):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * FACTOR


class ReadsTheMode(ReadsAGlobal):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * torch.is_grad_enabled()


class Counts(ReadsAGlobal):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        ctx.count = 1
        return grad


class GetsNone(ReadsAGlobal):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return x * 1


class GivesItAway(ReadsAGlobal):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        print(ctx)
        return x * 1


def closed_over(factor: float) -> type:
    class ReadsAClosure(Turned):
        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * factor

    return ReadsAClosure


@pytest.mark.parametrize("kind", [ReadsAGlobal, ReadsTheMode, Counts, GetsNone, GivesItAway, closed_over(2)])
def test_others_are_refused(kind: Any) -> None:
    """What their backward does is known only when it runs."""
    with pytest.raises(gradc.FallbackError, match="what it does in backward is known only then"):
        gradc.compile(lambda x: kind.apply(x).sum(), fullgraph=True)(torch.ones(3, requires_grad=True))


def test_an_argument_returned_is_refused() -> None:
    """The view that this is was made anew of the argument, past the Function."""
    with pytest.raises(gradc.FallbackError, match="returns a view"):
        gradc.compile(lambda x: Turned.apply(x * 2), fullgraph=True)(torch.ones(3, requires_grad=True))


def test_which_are_plain() -> None:
    assert all(map(is_plain, (Scaled, Sorted, Turned, Both)))
    assert not any(map(is_plain, (ReadsAGlobal, ReadsTheMode, Counts, GetsNone, GivesItAway)))


def test_sizes_that_change() -> None:
    def train(compile: Any, x: Tensor) -> Any:
        run, found = compile(lambda x: Scaled.apply(x.sin(), 2.0), fullgraph=True, dynamic=True), []
        for size in (2, 3, 5):
            found.append(torch.autograd.grad(run(x[:size]).sum(), x)[0])
        return found

    check(train, leaf(6))


def test_without_gradients() -> None:
    check(lambda compile, x: compile(lambda x: Scaled.apply(x, 2.0), fullgraph=True)(x), constant(3))
