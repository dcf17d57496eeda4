"""torch.autograd.grad inside a compiled function is a part of the region: eager's gradients at every order, in one graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters as dynamo_counters

import gradc
from tests.oracle import Report, check, constant, leaf

grad = torch.autograd.grad
SQUARE, OTHER = leaf(4, 4), leaf(4, 4)


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1))


def check_whole(step, *inputs) -> Report:
    """``check``, and the compiled function is one graph, of which nothing runs eagerly."""
    report = check(step, *inputs)
    assert report.num_graphs == 1, f"{step.__name__}: {report.num_graphs} graphs"
    assert not report.fallbacks, str(report)
    return report


# ---- orders


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("is_recorded_last", [True, False])
def test_orders(order, is_recorded_last):
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = torch.tanh(x @ w).sin()
            for number in range(order):
                creates = is_recorded_last or number < order - 1
                (y,) = grad(y.square().sum(), x, create_graph=creates)
            return y

        y = f(x, w)
        if is_recorded_last:
            y.exp().sum().backward()
        return y

    check_whole(step, SQUARE, OTHER)


def test_every_order_is_returned():
    def step(compile, x):
        @compile
        def f(x):
            y, found = x.sin() * x.square(), []
            for _ in range(3):
                (y,) = grad(y.sum(), x, create_graph=True)
                found.append(y)
            return found

        first, second, third = f(x)
        (first * third).sum().backward(retain_graph=True)
        second.sum().backward(create_graph=True)
        x.grad.square().sum().backward()
        return first, second, third

    check_whole(step, leaf(6, dtype=torch.float64))


def test_second_order_through_first_order_from_outside():
    def step(compile, x, w):
        f = compile(lambda x, w: grad(torch.tanh(x @ w).sum(), x, create_graph=True)[0])
        (outer,) = grad(f(x, w).square().sum(), w, create_graph=True)
        return outer, grad(outer.sin().sum(), (x, w))

    check_whole(step, SQUARE, OTHER)


def test_hessian_vector_product():
    def step(compile, x, v):
        @compile
        def product(x, v):
            (slope,) = grad((x @ x).tanh().sum(), x, create_graph=True)
            return grad(slope, x, v)[0]

        return product(x, v)

    check_whole(step, SQUARE, constant(4, 4))


def test_hessian_row_by_row():
    def step(compile, x):
        @compile
        def hessian(x):
            (slope,) = grad(x.sin().prod(dim=0).exp().sum() + x.pow(3).sum(), x, create_graph=True)
            return torch.stack([grad(entry, x, retain_graph=True)[0] for entry in slope])

        return hessian(x)

    check(step, leaf(4), allow_fallback=True)  # the derivative of a product asks for values: eager makes the call


# ---- losses with gradients in them


def test_gradient_penalty():
    def step(compile, x, model):
        @compile
        def loss(x):
            score = model(x)
            slope = grad(outputs=score, inputs=x, grad_outputs=torch.ones_like(score), create_graph=True, retain_graph=True)[0]
            return score.mean() + (slope.norm(dim=1) - 1).square().mean()

        loss(x).backward()

    check_whole(step, leaf(5, 6), mlp)


def test_burgers():
    def step(compile, t, x, model):
        @compile
        def loss(t, x):
            u = model(torch.cat([t, x], 1))
            u_t, u_x = grad(u.sum(), (t, x), create_graph=True)
            (u_xx,) = grad(u_x.sum(), x, create_graph=True)
            return (u_t + u * u_x - 0.01 * u_xx).square().mean()

        loss(t, x).backward()

    check_whole(step, leaf(7, 1), leaf(7, 1), lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)))


def test_leaf_made_inside():
    """The graph ends where the leaf is made; what follows is one graph."""

    def step(compile, x, model):
        @compile
        def energy_and_forces(x):
            x = x.clone().requires_grad_()
            energy = model(x).sum()
            return energy, -grad(energy, x, create_graph=True)[0]

        energy, forces = energy_and_forces(x)
        (energy + forces.square().sum()).backward()
        return energy, forces

    check(step, constant(5, 6), mlp)


def test_inner_step_of_maml():
    def step(compile, x, w):
        @compile
        def loss(x, w):
            inner = w
            for _ in range(2):
                (slope,) = grad((x @ inner).tanh().square().mean(), inner, create_graph=True)
                inner = inner - 0.1 * slope
            return (x @ inner).tanh().square().mean()

        loss(x, w).backward()

    check_whole(step, SQUARE, OTHER)


# ---- which gradients


def test_unused_input_is_none():
    def step(compile, x, w):
        return compile(lambda x, w: grad(x.sin().sum(), (x, w), allow_unused=True))(x, w)

    check_whole(step, SQUARE, OTHER)


def test_unused_input_becomes_zeros():
    def step(compile, x, w):
        f = compile(lambda x, w: grad(x.sin().sum(), (x, w), create_graph=True, materialize_grads=True))
        of_x, of_w = f(x, w)
        (of_x.sum() + of_w.sum()).backward()
        return of_x, of_w

    check_whole(step, SQUARE, OTHER)


def test_unused_input_is_an_error():
    def step(compile, x, w):
        return compile(lambda x, w: grad(x.sin().sum(), (x, w)))(x, w)

    check(step, SQUARE, OTHER, allow_fallback=True)


def test_gradients_of_intermediates_and_parameters():
    def step(compile, x, w):
        @compile
        def f(x, w):
            hidden = x @ w
            y = (hidden.tanh() * w).sum()
            of_hidden, of_w = grad(y, [hidden, w], create_graph=True)
            return hidden, of_hidden, of_w

        hidden, of_hidden, of_w = f(x, w)
        return hidden, grad((of_hidden * of_w).sum(), (hidden, x, w), allow_unused=True)

    check_whole(step, SQUARE, OTHER)


def test_dictionary_of_inputs():
    def step(compile, x, w):
        return compile(lambda x, w: grad((x @ w).sin().sum(), {"x": x, "w": w}))(x, w)

    check_whole(step, SQUARE, OTHER)


def test_several_outputs_with_gradients_of_their_own():
    def step(compile, x, w):
        @compile
        def f(x, w):
            return grad([x.sin(), x @ w], [x, w], [w, None or torch.ones_like(x)], create_graph=True)

        of_x, of_w = f(x, w)
        (of_x * of_w).sum().backward()
        return of_x, of_w

    check_whole(step, SQUARE, OTHER)


def test_gradient_that_is_the_one_given():
    def step(compile, x, v):
        f = compile(lambda x, v: grad(x + 1, x, v)[0])
        return f(x, v) is v, f(x, v)

    check_whole(step, SQUARE, constant(4, 4))


def test_input_with_a_history():
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = torch.tanh(x @ w)
            (slope,) = grad(y.sum(), x, create_graph=True)
            return y.sum() + slope.square().sum()

        f(x.exp(), w).backward()

    check_whole(step, SQUARE, OTHER)


# ---- what lies outside of the region


def test_history_that_leads_from_one_input_to_another():
    """The engine goes on from y to x: that way is not in the graph."""

    def step(compile, x, w):
        y = x.exp()
        return compile(lambda x, y: grad((x * y).sin().sum(), (x, y)))(x, y)

    report = check(step, SQUARE, OTHER)
    assert any("several arguments" in reason for reason in breaks_of(step, SQUARE, OTHER)), str(report)


def test_history_that_leads_from_one_input_to_another_later():
    """The region was compiled for leaves."""

    def step(compile, x, w):
        f = compile(lambda x, y: grad((x * y).sin().sum(), (x, y)))
        return f(x, w), f(x, x.exp())

    report = check(step, SQUARE, OTHER, allow_fallback=True)
    assert report.fallbacks == {"gradient inside that leads outside": 1}


def test_parameter_behind_the_history_of_another_input():
    def step(compile, x, w):
        y = x @ w
        return compile(lambda y, w: grad((y * w).sin().sum(), w))(y, w)

    check(step, SQUARE, OTHER)


@pytest.mark.parametrize("is_early", [True, False])
def test_hook_on_what_the_gradient_is_for(is_early):
    def step(compile, x, w):
        seen = []
        f = compile(lambda x, w: grad((x @ w).sin().sum(), x, create_graph=True)[0])
        if not is_early:
            seen.append(f(x, w))
        x.register_hook(lambda gradient: seen.append(gradient.detach().clone()) or gradient * 2)
        slope = f(x, w)
        slope.square().sum().backward()
        return slope, seen

    check(step, SQUARE, OTHER)


def test_hook_on_what_the_gradient_is_for_writes_where_the_function_writes():
    """Python effects of a graph are made behind it: a hook that runs inside of it came too late, and what it wrote was lost."""

    def step(compile, x, w):
        events = []

        def f(x, w):
            events.append("begin")
            slope = grad((x @ w).sin().sum(), x, create_graph=True)[0]
            events.append(len(events))
            return slope

        x.register_hook(lambda gradient: events.append("hook"))
        compile(f)(x, w)
        return events

    check(step, SQUARE, OTHER)


def test_retained_gradient_of_what_the_gradient_is_for():
    def step(compile, x, w):
        y = x.exp()
        y.retain_grad()
        return compile(lambda y, w: grad((y @ w).sin().sum(), y)[0])(y, w), y.grad

    check(step, SQUARE, OTHER, allow_fallback=True)


def test_hooks_on_other_parameters():
    def step(compile, x, w):
        seen = []
        w.register_hook(seen.append)
        w.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.clone()))
        f = compile(lambda x, w: grad((x @ w).sin().sum(), x, create_graph=True)[0])
        f(x, w).square().sum().backward()
        return seen

    check_whole(step, SQUARE, OTHER)


def test_anomaly_mode():
    def step(compile, x, w):
        f = compile(lambda x, w: grad((x @ w).sqrt().sum(), x, create_graph=True)[0])
        f(x, w)
        with torch.autograd.detect_anomaly(check_nan=True):
            return f(-x.detach().abs().requires_grad_(), w.detach().abs())

    check(step, SQUARE, OTHER, allow_fallback=True)


# ---- state


def test_autocast_around_the_forward_alone():
    def step(compile, x, w):
        @compile
        def f(x, w):
            with torch.autocast("cpu", torch.bfloat16):
                y = (x @ w).tanh() @ w
            (slope,) = grad(y.float().sum(), x, create_graph=True)
            return y.float().sum() + slope.square().sum()

        f(x, w).backward()

    check_whole(step, SQUARE, OTHER)


def test_autocast_around_the_gradient_alone():
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = (x @ w).tanh() @ w
            with torch.autocast("cpu", torch.bfloat16):
                (slope,) = grad(y.sum(), x, create_graph=True)
            return y.sum() + slope.square().sum()

        f(x, w).backward()

    check(step, SQUARE, OTHER, allow_fallback=True)


@pytest.mark.parametrize("creates", [True, False])
def test_autocast_around_all(creates):
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = (x @ w).tanh() @ w
            (slope,) = grad(y.sum(), x, create_graph=creates, retain_graph=True)
            return y.sum() + slope.square().sum()

        with torch.autocast("cpu", torch.bfloat16):
            loss = f(x, w)
        loss.backward()
        return loss

    check(step, SQUARE, OTHER)


def test_gradient_of_a_weight_under_autocast():
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = (x @ w).tanh() @ w
            (slope,) = grad(y.sum() + w.sum(), w, create_graph=True)
            return (x @ w).sum() + slope.square().sum()

        with torch.autocast("cpu", torch.bfloat16):
            x @ w
            loss = f(x, w)
        loss.backward()
        return loss

    report = check(step, SQUARE, OTHER, allow_fallback=True)
    assert "weight that autocast casts, and its gradient inside" in report.fallbacks


def test_dropout():
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = F.dropout((x @ w).tanh(), 0.5).exp()
            (slope,) = grad(y.sum(), x, create_graph=True)
            return y.sum() + F.dropout(slope, 0.5).square().sum()

        f(x, w).backward()
        return torch.rand(3)

    check_whole(step, SQUARE, OTHER)


@pytest.mark.parametrize("creates", [True, False])
def test_without_recording_around(creates):
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = (x @ w).tanh()
            loss = y.square().sum()
            with torch.no_grad():
                (slope,) = grad(loss, x, create_graph=creates, retain_graph=True)
                slope = slope * 2
            return y.sum() + slope.sum(), slope

        loss, slope = f(x, w)
        loss.backward()
        return slope, slope.requires_grad

    check(step, SQUARE, OTHER)


def test_written_into_between():
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = ((x @ w).tanh() * 2).add_(1)
            (slope,) = grad(y.sin().sum(), x, create_graph=True)
            slope[1:].mul_(3)
            return y.sum() + slope.square().sum()

        f(x, w).backward()

    check(step, SQUARE, OTHER)


def test_parameter_updated_by_its_gradient():
    """Nobody asks the nodes again that saved the parameter."""

    def step(compile, x, w):
        @compile
        def f(x, w):
            loss = (x @ w).tanh().square().sum()
            (slope,) = grad(loss, w)
            with torch.no_grad():
                w.sub_(0.1 * slope)
            return loss.detach()

        return f(x, w), f(x, w)

    check_whole(step, SQUARE, OTHER)


def test_parameter_updated_by_its_gradient_that_is_differentiated():
    """Eager raises in backward: the nodes that the gradient left behind saved the parameter."""

    def step(compile, x, w):
        @compile
        def f(x, w):
            loss = (x @ w).tanh().square().sum()
            (slope,) = grad(loss, x, create_graph=True)
            with torch.no_grad():
                w.sub_(0.1)
            return slope

        f(x, w).sum().backward()

    check(step, SQUARE, OTHER, allow_fallback=True, compare_messages=True)


def test_saved_tensor_written_into_after_the_gradient():
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = (x @ w).tanh()
            (slope,) = grad(y.sum(), x)
            y.detach().mul_(2)
            return slope, y.detach()

        return f(x, w)

    check(step, SQUARE, OTHER, allow_fallback=True)


def test_saved_tensor_written_into_before_the_gradient():
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = (x @ w).tanh()
            z = y.sum()
            y.detach().mul_(2)
            return grad(z, x)[0]

        return f(x, w)

    check(step, SQUARE, OTHER, allow_fallback=True, compare_messages=True)


def test_freed_buffers():
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = (x @ w).tanh().sum()
            return y, grad(y, x)[0]

        y, slope = f(x, w)
        y.backward()

    check(step, SQUARE, OTHER, compare_messages=True)


def test_freed_buffers_inside():
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = (x @ w).tanh().sum()
            return grad(y, x)[0] + grad(y, x)[0]

        return f(x, w)

    check(step, SQUARE, OTHER, allow_fallback=True, compare_messages=True)


def test_retain_graph_false_beside_create_graph():
    def step(compile, x, w):
        @compile
        def f(x, w):
            y = (x @ w).tanh().sum()
            return grad(y, x, create_graph=True, retain_graph=False)[0]

        f(x, w).sum().backward()

    check(step, SQUARE, OTHER, allow_fallback=True, compare_messages=True)


def test_batched_gradients():
    def step(compile, x, v):
        return compile(lambda x, v: grad(x.sin() * 2, x, v, is_grads_batched=True)[0])(x, v)

    check(step, leaf(4), constant(3, 4), allow_fallback=True)


def test_dynamic_sizes():
    def step(compile, model):
        @compile(dynamic=True)
        def loss(x):
            score = model(x)
            (slope,) = grad(score.sum(), x, create_graph=True)
            return score.mean() + slope.square().mean()

        found = []
        for number in (3, 5, 8):
            x = torch.randn(number, 6, requires_grad=True)
            loss(x).backward()
            found.append(x.grad)
        return found

    check_whole(step, mlp)


def test_sums_of_gradients_with_free_strides():
    """A dimension of size 1 may have any stride: eager writes the sum over its first addend."""

    def step(compile, a):
        @compile
        def f(a):
            t = a.mT
            return grad(t.std() + t.var(), t)[0]

        return f(a)

    check(step, leaf(1, 3))


# ---- what eager has to do


def breaks_of(step, *inputs) -> list[str]:
    """Why Dynamo's graphs ended in the compiled run of a check."""
    torch.compiler.reset()
    dynamo_counters.clear()
    step(gradc.compile, *(make() for make in inputs))
    return list(dynamo_counters["graph_break"])


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_function_of_the_users():
    def step(compile, x, w):
        return compile(lambda x, w: grad(Doubled.apply(x @ w).sin().sum(), x)[0])(x, w)

    check(step, SQUARE, OTHER)


def test_formula_that_asks_for_values():
    def step(compile, x, w):
        return compile(lambda x, w: grad((x @ w).max(), x, create_graph=True)[0])(x, w)

    check(step, SQUARE, OTHER)
    assert any("MaxBackward1" in reason for reason in breaks_of(step, SQUARE, OTHER))


def test_fullgraph():
    def step(compile, x, w):
        @compile(fullgraph=True)
        def f(x, w):
            (slope,) = grad((x @ w).tanh().sum(), x, create_graph=True)
            return slope.square().sum()

        f(x, w).backward()

    check_whole(step, SQUARE, OTHER)


def test_in_a_loop_of_steps():
    def step(compile, x, model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        @compile
        def loss(x):
            score = model(x)
            (slope,) = grad(score.sum(), x, create_graph=True)
            return (slope.norm(dim=1) - 1).square().mean()

        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            losses.append(loss(x.detach().requires_grad_()))
            losses[-1].backward()
            optimizer.step()
        return losses

    check_whole(step, leaf(5, 6), mlp)
