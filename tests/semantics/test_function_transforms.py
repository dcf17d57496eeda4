"""Higher order and function transforms: forward mode, torch.func, batched gradients."""

from __future__ import annotations

import torch
import torch.autograd.forward_ad as fwAD
from torch import nn

from tests.oracle import leaf
from tests.semantics.registry import case

TRANSFORM = "function transform"
FORWARD_AD = "forward-mode AD"


def f(x, w):
    return torch.tanh(x @ w).exp()


@case("Forward-mode AD", leaf(4, 6), leaf(6, 6), fallback=FORWARD_AD)
def test_dual_numbers(compile, x, w):
    with fwAD.dual_level():
        y = compile(f)(fwAD.make_dual(x.detach(), torch.ones(4, 6)), w.detach())
        return fwAD.unpack_dual(y).tangent


@case("Forward-mode AD", leaf(4, 6), leaf(6, 6), fallback=FORWARD_AD)
def test_forward_over_reverse(compile, x, w):
    g = compile(f)
    with fwAD.dual_level():
        dual = fwAD.make_dual(x, torch.ones(4, 6))
        (slope,) = torch.autograd.grad(g(dual, w).sum(), dual, create_graph=True)
        return fwAD.unpack_dual(slope).tangent


@case("Forward-mode AD", leaf(4, 6), lambda: nn.Sequential(nn.Linear(6, 6), nn.GELU()), fallback=FORWARD_AD)
def test_forward_mode_after_a_plain_call(compile, x, model):
    g = compile(model)
    g(x).sum().backward()
    with fwAD.dual_level():
        return fwAD.unpack_dual(g(fwAD.make_dual(x, torch.ones(4, 6)))).tangent


@case("Forward-mode AD", leaf(4, 6), leaf(6, 6), fallback=FORWARD_AD)
def test_reverse_through_the_tangent(compile, x, w):
    with fwAD.dual_level():
        tangent = fwAD.unpack_dual(compile(f)(fwAD.make_dual(x, torch.ones(4, 6)), w)).tangent
        tangent.sum().backward()


@case("torch.func", leaf(4, 6), leaf(6, 6), fallback=TRANSFORM, min_graphs=0)
def test_func_grad(compile, x, w):
    g = compile(f)
    return torch.func.grad(lambda x, w: g(x, w).sum(), argnums=(0, 1))(x, w)


@case("torch.func", leaf(4, 6), leaf(6, 6), fallback=TRANSFORM, min_graphs=0)
def test_func_vmap(compile, x, w):
    y = torch.func.vmap(compile(f), in_dims=(0, None))(x[:, None], w)
    y.sum().backward()
    return y


@case("torch.func", leaf(4, 6), leaf(6, 6), fallback=TRANSFORM, min_graphs=0)
def test_func_vmap_of_grad(compile, x, w):
    g = compile(f)
    return torch.func.vmap(torch.func.grad(lambda x, w: g(x, w).sum()), in_dims=(0, None))(x, w)


@case("torch.func", leaf(4, 6), leaf(6, 6), fallback=TRANSFORM, min_graphs=0)
def test_func_jvp(compile, x, w):
    return torch.func.jvp(compile(f), (x, w), (torch.ones(4, 6), torch.ones(6, 6)))


@case("torch.func", leaf(4, 6), leaf(6, 6), fallback=TRANSFORM, min_graphs=0)
def test_func_vjp(compile, x, w):
    y, pull = torch.func.vjp(compile(f), x, w)
    return y, pull(torch.ones(4, 6))


@case("torch.func", leaf(3, 4), leaf(4, 4), fallback=TRANSFORM, min_graphs=0)
def test_func_jacrev(compile, x, w):
    return torch.func.jacrev(compile(f), argnums=(0, 1))(x, w)


@case("torch.func", leaf(3, 4), leaf(4, 4), fallback=TRANSFORM, min_graphs=0)
def test_func_jacfwd(compile, x, w):
    return torch.func.jacfwd(compile(f))(x, w)


@case("torch.func", leaf(3), leaf(3, 3), fallback=TRANSFORM, min_graphs=0)
def test_func_hessian(compile, x, w):
    g = compile(lambda x, w: torch.tanh(x @ w).exp().sum())
    return torch.func.hessian(g)(x, w)


@case("torch.func", leaf(4, 6), leaf(6, 6))
def test_transform_inside_the_region(compile, x, w):
    y = compile(lambda x, w: torch.func.grad(lambda x: f(x, w).sum())(x))(x, w)
    y.sum().backward()
    return y


@case("torch.func", leaf(4, 6), leaf(6, 6))
def test_vmap_inside_the_region(compile, x, w):
    y = compile(lambda x, w: torch.func.vmap(lambda row: torch.tanh(row @ w))(x))(x, w)
    y.sum().backward()
    return y


@case("torch.func", leaf(5, 6), lambda: nn.Linear(6, 3), fallback=TRANSFORM, min_graphs=0)
def test_per_sample_gradients(compile, x, model):
    g = compile(lambda weights, row: torch.func.functional_call(model, weights, (row,)).square().sum())
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return torch.func.vmap(torch.func.grad(g), in_dims=(None, 0))(weights, x)


@case("is_grads_batched", leaf(4, 6), leaf(6, 6), fallback=TRANSFORM)
def test_is_grads_batched(compile, x, w):
    y = compile(f)(x, w)
    return torch.autograd.grad(y, (x, w), torch.randn(3, 4, 6), is_grads_batched=True)


@case("is_grads_batched", leaf(4, 6), leaf(6, 6), fallback=TRANSFORM)
def test_batched_gradients_take_the_ops_of_batches(compile, x, w):
    """Eager folds x.t() @ grads into one product, since x requires a gradient; a Program's own product would not."""
    y = compile(f)(x, w)
    return torch.autograd.grad(y, (x, w), torch.randn(64, 4, 6), is_grads_batched=True)


@case("is_grads_batched", leaf(4), leaf(4, 4), fallback=TRANSFORM)
def test_jacobian(compile, x, w):
    g = compile(f)
    return torch.autograd.functional.jacobian(g, (x, w)), torch.autograd.functional.jacobian(g, (x, w), vectorize=True)


@case("is_grads_batched", leaf(4), leaf(4, 4), fallback=TRANSFORM)
def test_hessian(compile, x, w):
    g = compile(lambda x: torch.tanh(x @ w).sum())
    return torch.autograd.functional.hessian(g, x), torch.autograd.functional.hessian(g, x, vectorize=True)


@case("is_grads_batched", leaf(4), leaf(4, 4))
def test_functional_products(compile, x, w):
    functional = torch.autograd.functional
    g, scalar = compile(lambda x: torch.tanh(x @ w)), compile(lambda x: torch.tanh(x @ w).sum())
    v = torch.ones(4)
    return functional.vjp(g, x, v), functional.jvp(g, x, v), functional.hvp(scalar, x, v), functional.vhp(scalar, x, v)


@case("is_grads_batched", leaf(3, 4, dtype=torch.float64), leaf(4, 4, dtype=torch.float64))
def test_gradcheck(compile, x, w):
    return torch.autograd.gradcheck(compile(f), (x, w), check_batched_grad=False)


@case("is_grads_batched", leaf(2, 3, dtype=torch.float64), leaf(3, 3, dtype=torch.float64))
def test_gradgradcheck(compile, x, w):
    return torch.autograd.gradgradcheck(compile(f), (x, w))
