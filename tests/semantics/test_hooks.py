"""Hooks and order: every hook runs, with eager's values, in eager's order."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import Variable

from tests.fuzz.toolbox import Sum, changing
from tests.oracle import leaf
from tests.semantics.registry import case


def f(x, w):
    return torch.tanh(x @ w).exp()


def model():
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


def noting(events, name, result=None):
    """A tensor hook that notes ``name`` and the gradient."""

    def hook(grad):
        events.append((name, grad.clone()))
        return result(grad) if result else None

    return hook


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_on_inputs(compile, x, w):
    events = []
    x.register_hook(noting(events, "x", lambda grad: grad * 2))
    w.register_hook(noting(events, "w"))
    compile(f)(x, w).sum().backward()
    return events


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_on_non_leaf_inputs(compile, x, w):
    events = []
    a, b = x * 2, w * 3
    a.register_hook(noting(events, "a", lambda grad: grad + 1))
    b.register_hook(noting(events, "b"))
    compile(f)(a, b).sum().backward()
    return events


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_on_outputs(compile, x, w):
    events = []
    y, z = compile(lambda x, w: (f(x, w), x.sin()))(x, w)
    y.register_hook(noting(events, "y", lambda grad: grad * 3))
    z.register_hook(noting(events, "z"))
    (y.sum() + z.sum()).backward()
    return events


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_on_an_intermediate_inside(compile, x, w):
    def g(x, w):
        hidden = x @ w
        if hidden.requires_grad:
            hidden.register_hook(lambda grad: grad * 2)
        return hidden.tanh()

    compile(g)(x, w).sum().backward()


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_side_effects_on_an_intermediate_inside(compile, x, w):
    events = []

    def g(x, w):
        hidden = x @ w
        hidden.register_hook(lambda grad: events.append(float(grad.sum())))
        return hidden.tanh()

    compile(g)(x, w).sum().backward()
    return events


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_added_between_forward_and_backward(compile, x, w):
    events = []
    a = x * 2
    y = compile(f)(a, w)
    a.register_hook(noting(events, "a", lambda grad: grad * 2))
    y.register_hook(noting(events, "y"))
    w.register_hook(noting(events, "w"))
    y.sum().backward()
    return events


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_removed_before_backward(compile, x, w):
    handle = x.register_hook(lambda grad: grad * 2)
    y = compile(f)(x, w)
    handle.remove()
    y.sum().backward()


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_order_of_all(compile, x, w):
    events = []
    a = x * 2
    y = compile(f)(a, w)
    for name, tensor in (("x", x), ("a", a), ("w", w), ("y", y)):
        tensor.register_hook(noting(events, name))
    for name, tensor in (("x", x), ("w", w)):
        tensor.register_post_accumulate_grad_hook(lambda t, name=name: events.append((name, "accumulated")))
    y.sum().backward()
    return events


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_several_on_one_tensor(compile, x, w):
    events = []
    y = compile(f)(x, w)
    for factor in (2, 3, 5):
        x.register_hook(noting(events, factor, lambda grad, factor=factor: grad * factor))
    y.sum().backward()
    return events


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_hook_that_raises(compile, x, w):
    def fail(grad):
        raise ValueError("from a hook")

    y = compile(f)(x, w)
    x.register_hook(fail)
    y.sum().backward()


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_grad_fn_pre_and_post_hooks(compile, x, w):
    events = []
    y = compile(f)(x, w)
    y.grad_fn.register_prehook(lambda grads: (events.append(("pre", grads[0].clone())), (grads[0] * 2,))[1])
    y.grad_fn.register_hook(lambda inputs, outputs: events.append(("post", outputs[0].clone())))
    y.sum().backward()
    return events


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_multi_grad_hook(compile, x, w):
    events = []
    a = x * 2
    y, z = compile(lambda a, w: (f(a, w), a.sin()))(a, w)
    torch.autograd.graph.register_multi_grad_hook((a, w, y), lambda grads: events.append([g is None for g in grads]))
    torch.autograd.graph.register_multi_grad_hook((y, z), lambda grad: events.append(grad.clone()), mode="any")
    y.sum().backward()
    return events


@case("Tensor hooks", leaf(4, 6), leaf(6, 6))
def test_hooks_changed_every_step_do_not_recompile(compile, x, w):
    g, counts = compile(f), []
    for step in range(4):
        handle = x.register_hook(lambda grad, step=step: grad * step)
        g(x, w).sum().backward()
        handle.remove()
        counts.append(compile.num_graphs())
    assert counts[-1] == counts[1], f"{counts} graphs"  # the first step finds no .grad to add to


@case("Module full backward hooks", leaf(4, 6), model, min_graphs=0)
def test_module_hooks(compile, x, net):
    events = []
    net[0].register_full_backward_hook(lambda m, gin, gout: events.append([gin[0], gout[0]]))
    net[2].register_full_backward_pre_hook(lambda m, gout: events.append([gout[0]]))
    compile(net)(x).sum().backward()
    return events


@case("Module full backward hooks", leaf(4, 6), model, min_graphs=0)
def test_module_hook_that_changes_gradients(compile, x, net):
    net[1].register_full_backward_hook(lambda m, gin, gout: (gin[0] * 2,))
    compile(net)(x).sum().backward()


@case("Module full backward hooks", leaf(4, 6), model)
def test_module_hook_registered_after_the_first_call(compile, x, net):
    events = []
    g = compile(net)
    g(x).sum().backward()
    net[0].register_full_backward_hook(lambda m, gin, gout: events.append(gout[0].clone()))
    g(x).sum().backward()
    return events


@case("Module full backward hooks", leaf(4, 6), model)
def test_module_hook_on_the_root_after_the_first_call(compile, x, net):
    events = []
    g = compile(net)
    g(x).sum().backward()
    g.register_full_backward_hook(lambda m, gin, gout: events.append(gout[0].clone()))
    g(x).sum().backward()
    return events


@case("Module full backward hooks", leaf(4, 6), model)
def test_forward_hooks_registered_after_the_first_call(compile, x, net):
    events = []
    g = compile(net)
    g(x)
    net[0].register_forward_hook(lambda m, args, out: out * 2)
    net[1].register_forward_pre_hook(lambda m, args: events.append("pre"))
    y = g(x)
    y.sum().backward()
    return y, events


@case("Module full backward hooks", leaf(4, 6), model, min_graphs=0)
def test_module_hook_removed_again(compile, x, net):
    events = []
    g = compile(net)
    handle = net[0].register_full_backward_hook(lambda m, gin, gout: events.append(gout[0].clone()))
    g(x).sum().backward()
    handle.remove()
    g(x).sum().backward()
    return events


@case("post_accumulate_grad hooks", leaf(4, 6), model)
def test_post_accumulate_order(compile, x, net):
    events = []
    for name, p in net.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: events.append((name, p.grad.clone())))
    g = compile(net)
    for _ in range(2):
        g(x).sum().backward()
    return events


@case("post_accumulate_grad hooks", leaf(4, 6), model)
def test_optimizer_in_backward(compile, x, net):
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in net.parameters()}

    def update(p):
        optimizers[p].step()
        p.grad = None

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(update)
    g = compile(net)
    for _ in range(3):
        g(x).square().sum().backward()


@case("post_accumulate_grad hooks", leaf(4, 6), model)
def test_added_after_the_first_call(compile, x, net):
    events = []
    g = compile(net)
    g(x).sum().backward()
    net[2].weight.register_post_accumulate_grad_hook(lambda p: events.append(p.grad.clone()))
    g(x).sum().backward()
    return events


def events_of_changed_gradients(loss, leaves):
    """Every leaf's hook notes the gradient that has arrived, and changes it in place."""
    events = []
    for p in leaves:
        p.register_post_accumulate_grad_hook(changing(events))
    for _ in range(2):
        loss().backward()
    return events


@case("post_accumulate_grad hooks", leaf(4), leaf(4), leaf(4), leaf(4))
def test_that_change_what_a_node_sends_to_several_leaves(compile, a, b, c, d):
    g = compile(lambda a, b, c, d: Sum.apply(a, b * 1, c.exp(), d).sum())
    return events_of_changed_gradients(lambda: g(a, b, c, d), (a, b, c, d))


@case("post_accumulate_grad hooks", leaf(4), leaf(4))
def test_that_change_what_a_hook_sends_to_several_leaves(compile, a, b):
    def loss():
        y = g(a, b)
        y.register_hook(lambda grad: grad * 2)
        return y.sum()

    g = compile(lambda a, b: a * 1 + b)
    return events_of_changed_gradients(loss, (a, b))


@case("Tensor hooks", leaf(4), leaf(4))
def test_that_keeps_what_goes_to_another_leaf_too(compile, a, b):
    kept = []
    a.register_hook(kept.append)
    g = compile(lambda a, b: (a + b).sin().sum())
    for _ in range(3):
        g(a, b).backward()  # adds to b.grad, in place
    return kept


@case("Tensor hooks", leaf(4), leaf(4))
def test_that_keeps_what_a_node_sends_to_another_leaf_too(compile, a, b):
    kept = []
    a.register_hook(kept.append)
    b.register_post_accumulate_grad_hook(lambda p: kept.append(p.grad.clone()))
    g = compile(lambda a, b: Sum.apply(a, b).sum())
    for _ in range(3):
        g(a, b).backward()
    return kept


@case("queue_callback", leaf(4, 6), leaf(6, 6))
def test_final_callback(compile, x, w):
    events = []

    def hook(grad):
        Variable._execution_engine.queue_callback(lambda: events.append(("end", x.grad is not None)))
        events.append(("hook", None))

    y = compile(f)(x, w)
    y.register_hook(hook)
    y.sum().backward()
    return events


@case("Gradient stealing", leaf(4, 6), leaf(6, 6))
def test_grad_identity_over_steps(compile, x, w):
    g = compile(f)
    g(x, w).sum().backward()
    first = x.grad
    g(x, w).sum().backward()
    return first is x.grad


@case("Gradient stealing", leaf(4, 6), leaf(4, 6))
def test_one_gradient_for_two_leaves(compile, x, w):
    compile(lambda x, w: x + w)(x, w).square().sum().backward()


@case("Gradient stealing", leaf(4, 6), leaf(4, 6))
def test_tangent_is_the_gradient(compile, x, w):
    tangent = torch.ones(4, 6)
    compile(lambda x, w: x + w)(x, w).backward(tangent)
    x.grad.add_(1)
    return tangent


@case("Gradient stealing", leaf(4, 6), leaf(6, 6))
def test_strides_of_grad(compile, x, w):
    compile(lambda x, w: (x @ w.t()).t())(x, w).square().sum().backward()


@case("Gradient stealing", leaf(4, 6), leaf(6, 6))
def test_accumulates_in_place(compile, x, w):
    x.grad = torch.ones(4, 6)
    before = x.grad
    compile(f)(x, w).sum().backward()
    return before


@case("Gradient stealing", leaf(4, 6, dtype=torch.bfloat16), leaf(6, 6))
def test_grad_dtype(compile, x, w):
    x.grad_dtype = torch.float32
    compile(lambda x, w: torch.tanh(x.float() @ w))(x, w).sum().backward()


@case("Gradient stealing", leaf(4, 6, dtype=torch.bfloat16), leaf(4, 6, dtype=torch.bfloat16))
def test_grad_dtype_none(compile, x, w):
    x.grad_dtype = None
    compile(lambda x, w: x * w)(x, w).sum().backward()
