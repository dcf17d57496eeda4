"""Programs that the fuzzer found wrong: views made under no_grad. Each was a bug of gradc's once."""

# ruff: noqa: F841

from __future__ import annotations

from tests.fuzz.toolbox import F, Product, TwoOutputs, attempt, checkpoint, constant, leaf, loss_of, torch
from tests.oracle import check


def returned_view_of_hypot_made_under_no_grad_step(compile, a):
    events = []

    @compile()
    def f(a):
        t2 = torch.matmul(a, a.to(a.dtype)).relu()
        t4 = torch.hypot(t2, t2)
        with torch.no_grad():
            t8 = t4.mT
        return {"q": t8}

    out = f(a)
    return events


def test_returned_view_of_hypot_made_under_no_grad():
    """What is made under no_grad of a recording value is a view of it, and records nothing."""
    check(returned_view_of_hypot_made_under_no_grad_step, leaf(1, 1, dtype=torch.float64), allow_fallback=True)


def part_unbound_under_no_grad_and_used_step(compile, b):
    events = []

    @compile()
    def f(b):
        t2 = torch.cat([b, b])
        with torch.no_grad():
            t4 = t2.unbind(1)[1]
        t7 = t4.nan_to_num()
        return {}

    out = f(b)
    return events


def test_part_unbound_under_no_grad_and_used():
    """A part that unbind returns under no_grad is used where recording goes on."""
    check(part_unbound_under_no_grad_and_used_step, leaf(2, 4, 2), allow_fallback=True)


def two_returned_views_made_under_no_grad_step(compile, a, c, d):
    events = []

    @compile()
    def f(a, c, d):
        t5 = d - c
        with torch.no_grad():
            t7 = t5.unbind(0)[0]
            t8 = t5.unsqueeze(1)
        return {"p": t7, "r": t8}

    out = f(a, c, d * 1)
    attempt(events, lambda: torch.autograd.grad(loss_of(out, "r", "p"), (out["p"], a), allow_unused=True))
    return events


def test_two_returned_views_made_under_no_grad():
    """Both need a gradient because their base does, and neither has a node that sends one."""
    check(
        two_returned_views_made_under_no_grad_step,
        leaf(2, dtype=torch.float16),
        leaf(2, 1),
        constant(2, 2, dtype=torch.bfloat16),
        allow_fallback=True,
    )


def gradient_of_nothing_beside_a_view_made_under_no_grad_step(compile, a, c):
    events = []

    @compile()
    def f(a, c):
        with torch.no_grad():
            t3 = a.unfold(0, 1, 1)
            t4 = c.to(c.dtype)
        t5 = t4.erf()
        t6 = t4.clamp(-1, 1)
        t7 = t5.square()
        t8 = torch.autograd.grad(t7.sin().sum(), t6, create_graph=True, materialize_grads=True)[0]
        return {"p": t3, "r": t8, "s": t4}

    out = f(a, c)
    attempt(events, lambda: loss_of(out, "p", "s", "r").backward())
    return events


def test_gradient_of_nothing_beside_a_view_made_under_no_grad():
    """A cast that changes nothing returns the input itself; the gradient asked for inside is one of zeros."""
    check(gradient_of_nothing_beside_a_view_made_under_no_grad_step, leaf(3, 4), leaf(4), allow_fallback=True)


def matmul_of_an_input_s_view_made_under_no_grad_with_itself_step(compile, b, c):
    events = []

    @compile()
    def f(b, c):
        with torch.no_grad():
            t9 = c.unsqueeze(0)
        t13 = t9 @ t9.to(t9.dtype).t()
        return {}

    out = f(b * 1, c)
    return events


def test_matmul_of_an_input_s_view_made_under_no_grad_with_itself():
    check(matmul_of_an_input_s_view_made_under_no_grad_with_itself_step, leaf(), leaf(3), allow_fallback=True)


def returned_flattening_of_hypot_made_under_no_grad_step(compile, b, c):
    events = []

    @compile()
    def f(b, c):
        t3 = c.float()
        t4 = F.mse_loss(b, t3.expand_as(b).to(b.dtype), reduction="none")
        t8 = torch.hypot(t4, t3)
        with torch.no_grad():
            t11 = t8.flatten()
        return {"q": t11}

    out = f(b, c * 1)
    return events


def test_returned_flattening_of_hypot_made_under_no_grad():
    check(returned_flattening_of_hypot_made_under_no_grad_step, constant(3, 3), leaf(3), allow_fallback=True)


def sigmoid_of_a_flattening_made_under_no_grad_step(compile, a):
    events = []

    @compile()
    def f(a):
        t2 = a.softmax(2)
        with torch.no_grad():
            t3 = t2.flatten()
        return {"p": t2, "q": torch.sigmoid(t3), "r": t3}

    out = f(a)
    attempt(events, lambda: out["q"].mul_(2) and None)
    attempt(events, lambda: loss_of(out, "q", "p", "r").backward())
    return events


def test_sigmoid_of_a_flattening_made_under_no_grad():
    """The view is returned, used, and what was made of it is written into."""
    check(sigmoid_of_a_flattening_made_under_no_grad_step, leaf(2, 1, 2), allow_fallback=True)


def view_under_no_grad_requires_grad_as_its_base_step(compile, b):
    @compile()
    def f(b):
        with torch.no_grad():
            t10 = b.mT[..., ::2]
        return t10.float(), t10

    return f(b.split(1, 1)[2])


def test_view_under_no_grad_requires_grad_as_its_base():
    """A view made without recording says that it needs a gradient because its base does."""
    check(view_under_no_grad_requires_grad_as_its_base_step, leaf(3, 3, dtype=torch.float16), allow_fallback=True)


def loss_of_a_view_made_under_no_grad_at_second_order_step(compile, a):
    @compile()
    def f(a):
        t5 = a.atan().mT
        with torch.no_grad():
            t7 = t5.view_as(t5)
        return F.smooth_l1_loss(t7, a.sin())

    (slope,) = torch.autograd.grad(f(a), a, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), a)


def test_loss_of_a_view_made_under_no_grad_at_second_order():
    """Such a view, where backward needs it, is made by eager."""
    check(loss_of_a_view_made_under_no_grad_at_second_order_step, leaf(3, 3), allow_fallback=True)


def function_of_a_view_made_under_no_grad_step(compile, a):
    events = []

    @compile()
    def f(a):
        t1 = a + torch.arange(a.shape[-1])
        with torch.no_grad():
            t3 = t1.as_strided(t1.shape, t1.stride())
            t4 = Product.apply(t3, t3)
        t10 = torch.sqrt(t3.abs() + 1)
        return {"q": t10}

    out = f(a)
    attempt(events, lambda: out["q"].mul_(2) and None)
    attempt(events, lambda: loss_of(out, "q").backward(retain_graph=True))
    return events


def test_function_of_a_view_made_under_no_grad():
    """The autograd.Function gets the same view twice, and records nothing."""
    check(function_of_a_view_made_under_no_grad_step, leaf(4, dtype=torch.float64), allow_fallback=True)


def returned_transposition_made_under_no_grad_step(compile, a, b):
    events = []

    @compile()
    def f(a, b):
        t5 = b.tanh() ** 2 + a
        t6 = t5.to(t5.dtype)
        t9 = t6.sign() * t6
        t10 = sum(TwoOutputs.apply(t9))
        with torch.no_grad():
            t16 = t9.mT
        return {"p": t16}

    out = f(a, b)
    attempt(events, lambda: loss_of(out, "p").backward())
    return events


def test_returned_transposition_made_under_no_grad():
    """Dynamo traces x.mT as a view that records, whatever the grad mode."""
    check(returned_transposition_made_under_no_grad_step, leaf(4), leaf(2, 4, dtype=torch.float64), allow_fallback=True)


def matmul_with_a_transposition_made_under_no_grad_step(compile, a, b):
    events = []

    @compile()
    def f(a, b):
        with torch.no_grad():
            t2 = b.mT
            t4 = torch.log1p(a.abs())
        t5 = checkpoint(lambda t: torch.tanh(t).exp().sin(), t4, use_reentrant=False)
        t7 = t2 @ t4.to(t2.dtype)
        return {"r": t7}

    out = f(a, b)
    attempt(events, lambda: loss_of(out, "r").backward())
    return events


def test_matmul_with_a_transposition_made_under_no_grad():
    """Dynamo traces x.mT as a view that records, whatever the grad mode."""
    check(
        matmul_with_a_transposition_made_under_no_grad_step,
        constant(1, 2),
        leaf(1, 2, dtype=torch.float64),
        allow_fallback=True,
    )
