"""Views whose base is written into after they were made: eager makes their nodes anew, by one as_strided from the base."""

import pytest
import torch

from tests.oracle import check, leaf

VIEWS = {
    "transposed": lambda base: base.transpose(0, 1),
    "expanded": lambda base: base[:, :1].expand(4, 3),
    "part": lambda base: base.t()[:2],
    "flat": lambda base: base.view(-1),
    "diagonal": lambda base: base.diagonal(),
    "windows": lambda base: base.unfold(0, 2, 1),
}
WRITES = {
    "to the base": lambda base, view: base.mul_(2),
    "to a detached handle": lambda base, view: base.detach().mul_(2),
    "without recording": torch.no_grad()(lambda base, view: base.mul_(2)),
    "to the view": lambda base, view: view.mul_(2) if view.shape != (4, 3) else base.mul_(2),
}
USES = {
    "used": lambda view, base: (view * view.abs().sin(),),
    "returned": lambda view, base: (view,),
    "returned with its base": lambda view, base: (view, base),
    "returned between": lambda view, base: (base.sin(), view, base.cos()),
    "used and returned": lambda view, base: (view.sin() + view.cos(), view),
    "used before": lambda view, base: (view * 2, base * 3, view),
}
# What is returned is a view outside too; made again there, it would have the node of a strided part, which it has not.
USED_AND_RETURNED = ("returned between", "used and returned", "used before")
NO_STRIDED_PART = "view of an intermediate that is no strided part of it, or was written into"


def gradients(outs, x):
    outs = [*outs, outs[0] * 2, outs[-1] * 3]  # outside, a view that is out of date gets its node at its first use
    outs.append(sum(out.sum() for out in outs))
    weights = [torch.linspace(-1, 1, out.numel()).view_as(out) for out in outs]
    return [torch.autograd.grad((out * w).sum(), x, retain_graph=True) for out, w in zip(outs, weights)]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_view_of_an_intermediate(view, write, use):
    def step(compile, x):
        @compile
        def f(x):
            base = (x * 1.5).sin()
            made = VIEWS[view](base)
            WRITES[write](base, made)
            return USES[use](made, base)

        return gradients(f(x), x)

    report = check(step, leaf(4, 3), allow_fallback=True)
    assert set(report.fallbacks) <= ({NO_STRIDED_PART} if use in USED_AND_RETURNED else set())


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("write", ["to a detached handle", "without recording"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("is_leaf", [True, False])
def test_view_of_an_input(is_leaf, view, write, use):
    def step(compile, x):
        @compile
        def f(x):
            made = VIEWS[view](x)
            WRITES[write](x, made)
            return USES[use](made, x)

        return gradients(f(x if is_leaf else x * 1), x)

    report = check(step, leaf(4, 3), allow_fallback=True)
    assert set(report.fallbacks) <= {"input written into whose casts or views are made outside"}


def test_view_made_of_a_view_that_was_rewritten():
    def step(compile, x):
        @compile
        def f(x):
            base = x.sin()
            view = base.t()
            base.mul_(2)
            return view[:2], base

        return gradients(f(x), x)

    check(step, leaf(4, 3))


def test_gradient_laid_out_as_the_rewritten_base():
    """Found by the fuzzer, seed 6006, program 202: the stride of a dimension of size 1."""

    def step(compile, c):
        @compile
        def f(c):
            view = c.transpose(0, -1)
            view.detach().mul_(1)
            return view.square().transpose(0, -1)

        out = f(c)
        out.backward(torch.ones_like(out))

    check(step, leaf(4, 1, dtype=torch.float64))


def test_dynamic_sizes():
    def step(compile, x, y):
        @compile(dynamic=True)
        def f(x):
            base = x.sin()
            view = base.t()
            base.mul_(2)
            return view.cos(), base

        return [gradients(f(x), x), gradients(f(y), y)]

    check(step, leaf(4, 3), leaf(6, 5))
