"""Programs that the fuzzer found wrong: gradients of gradients, inside and outside. Each was a bug of gradc's once."""

# ruff: noqa: F841

from __future__ import annotations

from tests.fuzz.toolbox import F, Shrink, attempt, constant, leaf, loss_of, torch
from tests.oracle import check


def second_order_of_a_value_written_behind_its_use_step(compile, a, b):
    events = []

    @compile()
    def f(a, b):
        t2 = torch.sin(b)
        t3 = t2 + torch.arange(t2.shape[-1])
        t2.mul_(a)
        t5 = F.dropout(t3, 0.4)
        t6 = torch.atan2(t5, a)
        t9 = t6[..., ::2]
        t11 = t2 @ a.to(t2.dtype).t()
        return {"p": t11, "q": t3, "r": t9}

    out = f(a, b * 1)
    attempt(
        events,
        lambda: torch.autograd.grad(
            torch.autograd.grad(loss_of(out, "p", "r", "q"), a, create_graph=True)[0].float().square().sum(),
            (
                a,
                b,
            ),
            allow_unused=True,
        ),
    )
    return events


def test_second_order_of_a_value_written_behind_its_use():
    check(second_order_of_a_value_written_behind_its_use_step, leaf(3, 2), leaf(2, 3, 2), allow_fallback=True)


def second_order_of_a_function_of_dynamic_sizes_step(compile, a):
    events = []

    @compile(dynamic=True)
    def f(a):
        t1 = a.relu()
        t2 = t1.select(0, 0)
        t3 = t2.clamp(-1, 1)
        t4 = Shrink.apply(t3)
        return {"q": t4, "r": t2}

    out = f(a * 1)
    attempt(
        events,
        lambda: torch.autograd.grad(
            torch.autograd.grad(loss_of(out, "r", "q"), a, create_graph=True)[0].float().square().sum(), (a,), allow_unused=True
        ),
    )
    return events


def test_second_order_of_a_function_of_dynamic_sizes():
    check(second_order_of_a_function_of_dynamic_sizes_step, leaf(4), allow_fallback=True)


def second_order_of_a_cat_in_bfloat16_then_backward_step(compile, b, c):
    events = []

    @compile()
    def f(b, c):
        t4 = torch.cat([c, c])
        return {"p": t4}

    out = f(b, c)
    attempt(
        events,
        lambda: torch.autograd.grad(
            torch.autograd.grad(loss_of(out, "p"), c, create_graph=True)[0].float().square().sum(),
            (
                b,
                c,
            ),
            allow_unused=True,
        ),
    )
    attempt(events, lambda: loss_of(out, "p").backward(retain_graph=True))
    return events


def test_second_order_of_a_cat_in_bfloat16_then_backward():
    check(
        second_order_of_a_cat_in_bfloat16_then_backward_step,
        leaf(2, 3, dtype=torch.float64),
        leaf(2, 2, 3, dtype=torch.bfloat16),
        allow_fallback=True,
    )


def second_order_behind_a_backward_that_saved_nothing_step(compile, a, b, c):
    events = []

    @compile()
    def f(a, b, c):
        t14 = b + c
        return {"r": t14}

    out = f(a * 1, b, c)
    attempt(events, lambda: loss_of(out, "r").backward())
    attempt(
        events,
        lambda: torch.autograd.grad(
            torch.autograd.grad(loss_of(out, "r"), b, create_graph=True)[0].float().square().sum(), (b,), allow_unused=True
        ),
    )
    return events


def test_second_order_behind_a_backward_that_saved_nothing():
    check(
        second_order_behind_a_backward_that_saved_nothing_step,
        constant(),
        leaf(4, 4, dtype=torch.bfloat16),
        constant(4, 4, dtype=torch.float64),
        allow_fallback=True,
    )


def second_order_of_topk_of_dynamic_sizes_step(compile, b, c):
    events = []

    @compile(dynamic=True)
    def f(b, c):
        t8 = c.topk(1, 0).values
        return {"q": t8}

    out = f(b, c)
    attempt(
        events,
        lambda: torch.autograd.grad(
            torch.autograd.grad(loss_of(out, "q"), c, create_graph=True)[0].float().square().sum(),
            (
                b,
                c,
            ),
            allow_unused=True,
        ),
    )
    return events


def test_second_order_of_topk_of_dynamic_sizes():
    check(second_order_of_topk_of_dynamic_sizes_step, leaf(3, 3), leaf(3, 1, dtype=torch.float64), allow_fallback=True)


def gradient_inside_of_a_linear_of_dynamic_sizes_step(compile, b):
    events = []

    @compile(dynamic=True)
    def f(b):
        t3 = F.linear(b, b.to(b.dtype))
        t4 = torch.autograd.grad(t3.sin().sum(), b, create_graph=True, materialize_grads=True)[0]
        return {}

    out = f(b)
    return events


def test_gradient_inside_of_a_linear_of_dynamic_sizes():
    check(gradient_inside_of_a_linear_of_dynamic_sizes_step, leaf(3, 4), allow_fallback=True)


def gradient_inside_of_a_variance_of_dynamic_sizes_step(compile, b):
    events = []

    @compile(dynamic=True)
    def f(b):
        t3 = b.float()
        t4 = b.float().var(0, correction=0)
        t6 = t4.to(t4.dtype)
        t8 = torch.autograd.grad(t6.sin().sum(), t3, create_graph=True, materialize_grads=True)[0]
        return {}

    out = f(b)
    return events


def test_gradient_inside_of_a_variance_of_dynamic_sizes():
    check(gradient_inside_of_a_variance_of_dynamic_sizes_step, leaf(2, 2), allow_fallback=True)


def gradient_inside_of_a_view_step(compile, a, b, c):
    events = []

    @compile()
    def f(a, b, c):
        t3 = b.view(-1)
        t4 = c.mul(t3).add(c, alpha=2)
        t5 = torch.autograd.grad(t4.sin().sum(), t3, create_graph=True, materialize_grads=True)[0]
        return {"p": t5}

    out = f(a * 1, b * 1, c)
    attempt(events, lambda: loss_of(out, "p").backward(retain_graph=True))
    return events


def test_gradient_inside_of_a_view():
    check(gradient_inside_of_a_view_step, leaf(2, 3, 4), leaf(4, dtype=torch.float16), leaf(4), allow_fallback=True)


def gradient_inside_of_a_transposition_that_is_used_further_step(compile, b, c):
    events = []

    @compile()
    def f(b, c):
        t3 = c.transpose(0, -1)
        t4 = torch.autograd.grad(t3.sin().sum(), t3, create_graph=True, materialize_grads=True)[0]
        t6 = t4.transpose(0, -1)
        t7 = torch.atan2(t6, c)
        t8 = t7.clone()
        return {"r": t8}

    out = f(b * 1, c)
    events.append(out)
    return events


def test_gradient_inside_of_a_transposition_that_is_used_further():
    check(
        gradient_inside_of_a_transposition_that_is_used_further_step,
        constant(dtype=torch.bfloat16),
        leaf(2, 1),
        allow_fallback=True,
    )


def second_order_of_gelu_of_dynamic_sizes_step(compile, a):
    f = compile(lambda a: F.gelu(torch.einsum("...ij,...kj->...ik", a, a)), dynamic=True)
    (slope,) = torch.autograd.grad(f(a).sin().sum(), a, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), a)


def test_second_order_of_gelu_of_dynamic_sizes():
    check(second_order_of_gelu_of_dynamic_sizes_step, leaf(2, 1, dtype=torch.float64), allow_fallback=True)


def formula_traced_late_leaves_the_size_open_step(compile, a):
    f = compile(lambda a: a.exp().abs(), dynamic=True)
    grads = []
    for values in (a, a[:-1]):
        (slope,) = torch.autograd.grad(f(values).square().sum(), a, create_graph=True)
        grads += torch.autograd.grad(slope.square().sum(), a)
    return grads


def test_formula_traced_late_leaves_the_size_open():
    """A formula traced late must not fix the size that all other calls share."""
    check(formula_traced_late_leaves_the_size_open_step, leaf(4), allow_fallback=True)


def formula_of_cumprod_asks_for_subclasses_step(compile, b):
    @compile()
    def f(b):
        return b.abs().cumprod(0)

    (slope,) = torch.autograd.grad(f(b).sin().sum(), b, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), b)


def test_formula_of_cumprod_asks_for_subclasses():
    """Formulas that ask whether a tensor is a subclass ask under create_graph, too."""
    check(formula_of_cumprod_asks_for_subclasses_step, leaf(5, 3), allow_fallback=True)


def two_symbolic_sizes_that_were_found_equal_step(compile, a):
    @compile(dynamic=True)
    def f(a):
        t2 = a.chunk(2, 1)[0]
        return t2 @ t2.t()

    (slope,) = torch.autograd.grad(f(a * 1).sin().sum(), a, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), a)


def test_two_symbolic_sizes_that_were_found_equal():
    """Of two symbolic sizes that the first trace found equal, a derivative knows one."""
    check(two_symbolic_sizes_that_were_found_equal_step, leaf(4, 2), allow_fallback=True)


def incoming_gradient_is_cast_anew_for_each_use_step(compile, a):
    out = compile(lambda a: a @ a)(a)
    with torch.autocast("cpu", torch.bfloat16):
        (slope,) = torch.autograd.grad(out.sin().sum(), a, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), a)


def test_incoming_gradient_is_cast_anew_for_each_use():
    """Autocast keeps its copies of leaves: a gradient that comes in is none, and is cast anew for each use."""
    check(incoming_gradient_is_cast_anew_for_each_use_step, leaf(3, 3))


def second_order_of_diff_with_an_odd_gradient_of_dynamic_sizes_step(compile, a):
    f = compile(lambda a: a.diff(dim=1).expand(2, -1, -1), dynamic=True)
    (slope,) = torch.autograd.grad(f(a).sum(0).mT.contiguous().mT.sin().sum(), a, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), a)


def test_second_order_of_diff_with_an_odd_gradient_of_dynamic_sizes():
    """What no key can be made for is differentiated on real tensors."""
    check(second_order_of_diff_with_an_odd_gradient_of_dynamic_sizes_step, leaf(4, 3), allow_fallback=True)


def an_odd_gradient_of_a_dynamic_shape_is_differentiated_eagerly_step(compile, a):
    out = compile(lambda a: a.exp(), dynamic=True)(a)
    odd = torch.randn(4, 6)[:, ::2].requires_grad_()
    (slope,) = torch.autograd.grad(out, a, odd, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), (a, odd))


def test_an_odd_gradient_of_a_dynamic_shape_is_differentiated_eagerly():
    check(an_odd_gradient_of_a_dynamic_shape_is_differentiated_eagerly_step, leaf(4, 3), allow_fallback=True)


def second_order_of_two_uses_of_a_returned_view_s_source_step(compile, b, c, d):
    events = []

    @compile()
    def f(b, c, d):
        t4 = c.transpose(0, -1)
        t7 = torch.log1p(t4.abs())
        t8 = t4.unsqueeze(0)
        t10 = t7 @ t4
        return {"p": t8, "q": t10}

    out = f(b, c, d)
    attempt(
        events,
        lambda: torch.autograd.grad(
            torch.autograd.grad(loss_of(out, "p", "q"), c, create_graph=True)[0].float().square().sum(),
            (
                b,
                c,
                d,
            ),
            allow_unused=True,
        ),
    )
    return events


def test_second_order_of_two_uses_of_a_returned_view_s_source():
    check(
        second_order_of_two_uses_of_a_returned_view_s_source_step,
        leaf(3),
        leaf(3, 3, dtype=torch.bfloat16),
        leaf(4, 3),
        allow_fallback=True,
    )


def sums_of_shared_values_at_three_orders_step(compile, a):
    events = []

    @compile()
    def f(a):
        t1 = a.sin()
        t2 = t1.tanh() ** 2 + t1
        return {"p": t1, "q": t2 + t1}

    for names in (("q",), ("p", "q")):
        out = f(a)
        first = torch.autograd.grad(loss_of(out, *names), a, create_graph=True)[0]
        events += [first, *torch.autograd.grad(first.square().sum(), (a,), create_graph=True)]
        events += torch.autograd.grad(events[-1].square().sum(), (a,))
    return events


def test_sums_of_shared_values_at_three_orders():
    """Under create_graph a segment adds up what its targets get as eager does, for sums of three are not associative."""
    check(sums_of_shared_values_at_three_orders_step, leaf(40, 40))
