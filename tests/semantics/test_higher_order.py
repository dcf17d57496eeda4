"""Higher order: create_graph outside and inside a compiled region."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.oracle import constant, indices, leaf
from tests.semantics.registry import case

grad = torch.autograd.grad


def field():
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))


def conv():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU())


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 1))


@case("create_graph=True outside", leaf(5, 6), mlp)
def test_gradient_penalty(compile, x, model):
    score = compile(model)(x)
    (slope,) = grad(score.sum(), x, create_graph=True)
    (score.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()


@case("create_graph=True outside", leaf(5, 6), mlp)
def test_gradient_penalty_for_many_steps(compile, x, model):
    optimizer = torch.optim.Adam(model.parameters())
    f = compile(model)
    for _ in range(3):
        optimizer.zero_grad()
        (slope,) = grad(f(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        optimizer.step()


@case("create_graph=True outside", leaf(4, 6), leaf(6, 6))
def test_hessian_vector_product(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w).exp())(x, w)
    first = grad(y.sum(), (x, w), create_graph=True)
    return first, grad(first, (x, w), [torch.ones_like(g) for g in first])


@case("create_graph=True outside", leaf(6))
def test_second_order_pointwise(compile, x):
    (first,) = grad(compile(lambda x: x.sin() * x.exp())(x).sum(), x, create_graph=True)
    first.sum().backward()


@case("create_graph=True outside", leaf(6, dtype=torch.float64))
def test_fourth_order(compile, x):
    y = compile(lambda x: x.sin() * x.square())(x)
    found = []
    for _ in range(4):
        (y,) = grad(y.sum(), x, create_graph=True)
        found.append(y)
    return found


@case("create_graph=True outside", leaf(4, 5), leaf(5, 3))
def test_third_order_matrix(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    (y,) = grad(y.sum(), x, create_graph=True)
    (y,) = grad(y.square().sum(), w, create_graph=True)
    y.square().sum().backward()


@case("create_graph=True outside", leaf(4, 6), leaf(6, 6))
def test_backward_with_create_graph(compile, x, w):
    compile(lambda x, w: torch.tanh(x @ w))(x, w).sum().backward(create_graph=True)
    x.grad.square().sum().backward()


@case("create_graph=True outside", leaf(4, 6), leaf(6, 6))
def test_gradient_of_the_tangent(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    tangent = torch.ones(4, 6, requires_grad=True)
    (first,) = grad(y, x, tangent, create_graph=True)
    return grad(first.square().sum(), (tangent, w))


@case("create_graph=True outside", leaf(4, 6), leaf(6, 6))
def test_second_order_of_a_returned_intermediate(compile, x, w):
    def f(x, w):
        hidden = x @ w
        return hidden, hidden.tanh().exp()

    hidden, y = compile(f)(x, w)
    (first,) = grad(y.sum(), hidden, create_graph=True)
    return first, grad(first.sum(), (hidden, x))


@case("create_graph=True outside", leaf(4, 6), leaf(6, 6))
def test_first_gradients_equal_with_and_without(compile, x, w):
    f = compile(lambda x, w: torch.tanh(x @ w).exp())
    return grad(f(x, w).sum(), (x, w)), grad(f(x, w).sum(), (x, w), create_graph=True)


@case("create_graph=True outside", leaf(4, 6), leaf(6, 6))
def test_second_order_with_dropout(compile, x, w):
    y = compile(lambda x, w: F.dropout(torch.tanh(x @ w)).exp())(x, w)
    (first,) = grad(y.sum(), x, create_graph=True)
    first.square().sum().backward()


@case("create_graph=True outside", leaf(4, 6), leaf(6, 6))
def test_second_order_under_autocast(compile, x, w):
    with torch.autocast("cpu", torch.bfloat16):
        y = compile(lambda x, w: torch.tanh(x @ w) @ w)(x, w)
    (first,) = grad(y.float().sum(), x, create_graph=True)
    first.square().sum().backward()


@case("create_graph=True outside", leaf(4, 6), leaf(6, 6))
def test_maml_inner_step(compile, x, w):
    loss = compile(lambda x, w: torch.tanh(x @ w).square().mean())
    inner = w
    for _ in range(2):
        (slope,) = grad(loss(x, inner), inner, create_graph=True)
        inner = inner - 0.1 * slope
    loss(x, inner).backward()
    return inner


@case("torch.autograd.grad(..., create_graph=True) and .backward() inside", leaf(4, 6), leaf(6, 6))
def test_grad_inside(compile, x, w):
    @compile
    def f(x, w):
        y = torch.tanh(x @ w)
        (slope,) = grad(y.sum(), x, create_graph=True)
        return y.sum() + slope.square().sum()

    f(x, w).backward()


@case("torch.autograd.grad(..., create_graph=True) and .backward() inside", leaf(4, 6), leaf(6, 6))
def test_grad_inside_without_graph(compile, x, w):
    @compile
    def f(x, w):
        y = torch.tanh(x @ w)
        (slope,) = grad(y.sum(), x, retain_graph=True)
        return y + slope

    f(x, w).sum().backward()


@case("torch.autograd.grad(..., create_graph=True) and .backward() inside", leaf(4, 6), leaf(6, 6), min_graphs=0)
def test_backward_inside(compile, x, w):
    @compile
    def f(x, w):
        y = torch.tanh(x @ w).sum()
        y.backward()
        return y.detach()

    return f(x, w)


@case("torch.autograd.grad(..., create_graph=True) and .backward() inside", leaf(5, 3), indices(12, high=5))
def test_force_field(compile, positions, receivers):
    """Message passing; trained on energies and forces."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, 1))
    senders = (receivers + 1) % 5

    @compile
    def energy_and_forces(positions):
        distance = (positions[senders] - positions[receivers]).norm(dim=1, keepdim=True)
        atoms = positions.new_zeros(5, 1).index_add(0, receivers, net(distance))
        energy = atoms.square().sum()
        (slope,) = grad(energy, positions, create_graph=True)
        return energy, -slope

    energy, forces = energy_and_forces(positions)
    (energy + forces.square().sum()).backward()
    return energy, forces, [p.grad for p in net.parameters()]


@case("create_graph=True outside", leaf(5, 3), indices(12, high=5))
def test_force_field_from_outside(compile, positions, receivers):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, 1))
    senders = (receivers + 1) % 5

    @compile
    def energy(positions):
        distance = (positions[senders] - positions[receivers]).norm(dim=1, keepdim=True)
        return positions.new_zeros(5, 1).index_add(0, receivers, net(distance)).square().sum()

    (slope,) = grad(energy(positions), positions, create_graph=True)
    slope.square().sum().backward()
    return [p.grad for p in net.parameters()]


@case("create_graph=True outside", leaf(16, 1), leaf(16, 1))
def test_burgers_equation(compile, x, t):
    """Second derivatives in the loss: third order for the weights, whose version counters are not always eager's there."""
    net = field()
    u = compile(lambda x, t: net(torch.cat([x, t], 1)))(x, t)
    ones = torch.ones_like(u)
    u_x, u_t = grad(u, (x, t), ones, create_graph=True)
    (u_xx,) = grad(u_x, x, ones, create_graph=True)
    (u_t + u * u_x - 0.01 * u_xx).square().mean().backward()
    return [p.grad for p in net.parameters()]


@case("create_graph=True outside", leaf(2, 4, 8))
def test_attention_second_order(compile, x):
    with sdpa_kernel(SDPBackend.MATH):  # torch has no second derivative of the others
        y = compile(lambda x: F.scaled_dot_product_attention(x, x, x))(x)
    (first,) = grad(y.square().sum(), x, create_graph=True)
    first.square().sum().backward()


@case("create_graph=True outside", constant(4, 3, 8, 8), conv)
def test_convolution_second_order(compile, x, net):
    x.requires_grad_()
    (first,) = grad(compile(net)(x).square().sum(), x, create_graph=True)
    first.square().sum().backward()
