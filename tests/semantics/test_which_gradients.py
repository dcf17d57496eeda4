"""Which gradients exist: None where eager has None, errors where eager raises, and no wasted work."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from tests.oracle import leaf
from tests.semantics.registry import case


def two_heads(x, w, v):
    return torch.tanh(x @ w), torch.sin(x @ v)


@case("An output that the loss does not use", leaf(4, 8), leaf(8, 8), leaf(8, 8))
def test_unused_output_gives_none(compile, x, w, v):
    first, _ = compile(two_heads)(x, w, v)
    first.sum().backward()


@case("An output that the loss does not use", leaf(4, 8), leaf(8, 8), leaf(8, 8))
def test_weight_decay_and_momentum_do_not_move_it(compile, x, w, v):
    optimizer = torch.optim.SGD([x, w, v], lr=0.1, momentum=0.9, weight_decay=0.1)
    f = compile(two_heads)
    for used in (0, 1, 0):
        optimizer.zero_grad()
        f(x, w, v)[used].sum().backward()
        optimizer.step()
    return optimizer


@case("An output that the loss does not use", leaf(4, 8), leaf(8, 8), leaf(8, 8))
def test_allow_unused(compile, x, w, v):
    _, second = compile(two_heads)(x, w, v)
    return torch.autograd.grad(second.sum(), (x, w, v), allow_unused=True)


@case("An output that the loss does not use", leaf(4, 8), leaf(8, 8), leaf(8, 8))
def test_materialize_grads(compile, x, w, v):
    first, _ = compile(two_heads)(x, w, v)
    return torch.autograd.grad(first.sum(), (x, w, v), materialize_grads=True)


@case("An output that the loss does not use", leaf(4, 8), leaf(8, 8), leaf(8, 8), compare_messages=True)
def test_unused_error(compile, x, w, v):
    first, _ = compile(two_heads)(x, w, v)
    torch.autograd.grad(first.sum(), (x, w, v))


@case("An output that the loss does not use", leaf(4, 8), leaf(8, 8))
def test_unused_input(compile, x, w):
    compile(lambda x, w: x.sin())(x, w).sum().backward()


@case("An output that the loss does not use", leaf(4, 8), leaf(8, 8), leaf(8, 8))
def test_no_work_for_unused_output(compile, x, w, v):
    f = compile(two_heads)
    return [multiplications_in(f(x, w, v)[0].sum().backward) for _ in range(3)][-1]


@case("An output that the loss does not use", leaf(4, 8), leaf(8, 8))
def test_no_work_for_gradient_nobody_asked_for(compile, x, w):
    f = compile(lambda x, w: torch.tanh(x @ w))

    def count():
        y = f(x, w)
        return multiplications_in(lambda: torch.autograd.grad(y.sum(), (w,)))

    return [count(), count()][-1]


def multiplications_in(function):
    """How many matrix products ``function`` runs. The first calls may compile, and then count too much."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    return sum(event.name in ("aten::mm", "aten::addmm") for event in profile.events())


@case("backward(inputs=[...])", leaf(4, 8), leaf(8, 8), leaf(8, 8))
def test_backward_inputs(compile, x, w, v):
    first, second = compile(two_heads)(x, w, v)
    (first.sum() + second.sum()).backward(inputs=[w])


@case("backward(inputs=[...])", leaf(4, 8), leaf(8, 8), leaf(8, 8))
def test_grad_of_chosen_inputs(compile, x, w, v):
    f = compile(two_heads)
    found = []
    for chosen in ((x,), (w, v), (v, x)):
        found += torch.autograd.grad(sum(y.sum() for y in f(x, w, v)), chosen)
    return found


@case("backward(inputs=[...])", leaf(4, 8), leaf(8, 8))
def test_requires_grad_flipped_between_calls(compile, x, w):
    f = compile(lambda x, w: torch.tanh(x @ w))
    outputs = []
    for wanted in (True, False, True):
        w.requires_grad_(wanted)
        outputs.append(f(x, w))
        outputs[-1].sum().backward()
    return outputs


@case("backward(inputs=[...])", leaf(4, 8), leaf(8, 8))
def test_gradient_edge_of_output_and_input(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    edge, to = get_gradient_edge(y), get_gradient_edge(w)
    del y
    return torch.autograd.grad(edge, (to, x), torch.ones(4, 8))


@case("backward(inputs=[...])", leaf(4, 8), leaf(8, 8))
def test_grad_outputs_none_for_scalar_among_several(compile, x, w):
    a, b = compile(lambda x, w: ((x @ w).sum(), x.exp()))(x, w)
    return torch.autograd.grad((a, b), (x, w), (None, torch.ones(4, 8)))


@case("Two backwards over two outputs", leaf(4), leaf(4))
def test_disjoint_inputs(compile, x, w):
    a, b = compile(lambda x, w: (x.exp(), w.exp()))(x, w)
    a.sum().backward()
    b.sum().backward()


@case("Two backwards over two outputs", leaf(4), leaf(4))
def test_first_output_freed_second_kept(compile, x, w):
    a, b = compile(lambda x, w: (x.exp() * x, w.exp() * w))(x, w)
    a.sum().backward(retain_graph=True)
    b.sum().backward()
    a.sum().backward()


@case("Two backwards over two outputs", leaf(4, 8), leaf(8, 8), compare_messages=True)
def test_shared_trunk_raises(compile, x, w):
    def f(x, w):
        trunk = torch.tanh(x @ w)
        return trunk.sin(), trunk.cos()

    a, b = compile(f)(x, w)
    a.sum().backward()
    b.sum().backward()


@case("Two backwards over two outputs", leaf(4, 8), leaf(8, 8))
def test_shared_trunk_retained(compile, x, w):
    def f(x, w):
        trunk = torch.tanh(x @ w)
        return trunk.sin(), trunk.cos()

    a, b = compile(f)(x, w)
    a.sum().backward(retain_graph=True)
    b.sum().backward()


@case("Second backward where nothing was saved", leaf(4), leaf(4))
def test_second_backward_without_saves(compile, x, w):
    y = compile(lambda x, w: (x + w.neg()).view(2, 2).sum(0))(x, w)
    y.sum().backward()
    y.sum().backward()


@case("Second backward where nothing was saved", leaf(4, 8), leaf(8, 8), compare_messages=True)
def test_second_backward_raises(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    y.sum().backward()
    y.sum().backward()


@case("Second backward where nothing was saved", leaf(4, 8), leaf(8, 8))
def test_retain_graph_many_times(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    for _ in range(5):
        y.sum().backward(retain_graph=True)


@case("Second backward where nothing was saved", leaf(4))
def test_second_backward_after_saving_a_number(compile, x):
    """``x ** 2`` saves x; ``x * 3`` saves a number that no hook sees."""
    y = compile(lambda x: (x * 3, x**2))(x)
    y[0].sum().backward()
    y[0].sum().backward()
    y[1].sum().backward()


def with_intermediate(x, w):
    hidden = x @ w
    return hidden, torch.tanh(hidden).exp()


@case("Gradient with respect to a returned intermediate", leaf(4, 8), leaf(8, 8))
def test_gradient_of_intermediate(compile, x, w):
    hidden, y = compile(with_intermediate)(x, w)
    return torch.autograd.grad(y.sum(), (hidden, w))


@case("Gradient with respect to a returned intermediate", leaf(4, 8), leaf(8, 8))
def test_retain_grad(compile, x, w):
    hidden, y = compile(with_intermediate)(x, w)
    hidden.retain_grad()
    (y.sum() + hidden.square().sum()).backward()
    return hidden


@case("Gradient with respect to a returned intermediate", leaf(4, 8), leaf(8, 8))
def test_hook_on_intermediate(compile, x, w):
    hidden, y = compile(with_intermediate)(x, w)
    hidden.register_hook(lambda grad: grad * 2)
    y.sum().backward()


@case("Gradient with respect to a returned intermediate", leaf(4, 8), leaf(8, 8))
def test_intermediate_alone(compile, x, w):
    hidden, _ = compile(with_intermediate)(x, w)
    hidden.sum().backward()
    return hidden


@case("Gradient with respect to a returned intermediate", leaf(4, 8), leaf(8, 8))
def test_stop_at_intermediate(compile, x, w):
    hidden, y = compile(with_intermediate)(x, w)
    y.sum().backward(inputs=[hidden])
    return hidden


class Scale(torch.autograd.Function):
    """Scales by 2; its backward notes what it got."""

    seen: list = []

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w, x + w

    @staticmethod
    def backward(ctx, a, b):
        x, w = ctx.saved_tensors
        Scale.seen.append((a is None, b is None, *ctx.needs_input_grad))
        grad = torch.zeros_like(x) if a is None else a
        return grad * w, grad * x


class NoMaterialize(Scale):
    @staticmethod
    def forward(ctx, x, w):
        ctx.set_materialize_grads(False)
        return Scale.forward(ctx, x, w)


@case("autograd.Function", leaf(4), leaf(4))
def test_function_with_unused_output(compile, x, w):
    Scale.seen.clear()
    a, _ = compile(lambda x, w: Scale.apply(x, w))(x, w)
    a.sum().backward()


@case("autograd.Function", leaf(4), leaf(4), fallback="autograd.Function")
def test_set_materialize_grads(compile, x, w):
    Scale.seen.clear()
    _, b = compile(lambda x, w: NoMaterialize.apply(x.sin(), w))(x, w)
    b.sum().backward()
    return [str(entry) for entry in Scale.seen]


@case("autograd.Function", leaf(4), leaf(4, requires_grad=False))
def test_needs_input_grad(compile, x, w):
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return grad * w if ctx.needs_input_grad[0] else None, grad * x if ctx.needs_input_grad[1] else None

    compile(lambda x, w: Product.apply(x, w).exp())(x, w).sum().backward()


@case("autograd.Function", leaf(4))
def test_mark_dirty(compile, x):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    y = compile(lambda x: Double.apply(x.sin()) * 3)(x)
    y.sum().backward()
    return y


@case("autograd.Function", leaf(4))
def test_mark_non_differentiable(compile, x):
    class Sort(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            values, order = x.sort()
            ctx.mark_non_differentiable(order)
            ctx.save_for_backward(order)
            return values, order

        @staticmethod
        def backward(ctx, grad, _):
            (order,) = ctx.saved_tensors
            return torch.zeros_like(grad).index_add(0, order, grad)

    values, order = compile(lambda x: Sort.apply(x * 2))(x)
    (values * order).sum().backward()
    return values, order


@case("autograd.Function", leaf(4))
def test_saved_output(compile, x):
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, grad):
            (y,) = ctx.saved_tensors
            return grad * y

    y = compile(lambda x: Exp.apply(x.sin()))(x)
    y.sum().backward()
    return y


@case("autograd.Function", leaf(4), fallback="autograd.Function")
def test_state_read_in_backward(compile, x):
    state = {"scale": 1.0}

    class Stateful(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * state["scale"]

    f = compile(lambda x: Stateful.apply(x.sin()))
    for scale in (2.0, 3.0):
        y = f(x)
        state["scale"] = scale
        y.sum().backward()


@case("autograd.Function", leaf(4))
def test_custom_jvp(compile, x):
    class Sin(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0].cos()

        @staticmethod
        def jvp(ctx, tangent):
            return tangent * ctx.saved_tensors[0].cos()

    y = compile(lambda x: Sin.apply(x) * 2)(x)
    y.sum().backward()
    return y


@case("autograd.Function", leaf(4))
def test_function_returning_none(compile, x):
    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return None

    compile(lambda x: Stop.apply(x.sin()))(x).sum().backward()


@case("autograd.Function", leaf(4, 8), lambda: nn.Linear(8, 8))
def test_function_around_a_module(compile, x, model):
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return -grad

    y = compile(lambda x: model(Reverse.apply(model(x))))(x)
    y.sum().backward()
    return y
