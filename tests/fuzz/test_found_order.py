"""Programs that the fuzzer found wrong: in which order gradients are added up. Each was a bug of gradc's once."""

from __future__ import annotations

from tests.fuzz.toolbox import F, Product, TwoOutputs, attempt, constant, leaf, loss_of, torch
from tests.oracle import check


def lerp_of_two_casts_of_one_input_step(compile, c):
    events = []

    @compile()
    def f(c):
        t4 = torch.lerp(c.double(), c.double(), 0.3)
        return {"p": t4}

    out = f(c)
    attempt(events, lambda: loss_of(out, "p").backward())
    attempt(events, lambda: torch.autograd.grad(loss_of(out, "p"), (out["p"], c), allow_unused=True))
    return events


def test_lerp_of_two_casts_of_one_input():
    check(lerp_of_two_casts_of_one_input_step, leaf(dtype=torch.float16), allow_fallback=True)


def lerp_of_two_casts_differentiated_three_times_step(compile, a):
    events = []

    @compile()
    def f(a):
        t2 = torch.lerp(a.double(), a.double(), 0.3)
        t3 = t2.flatten()
        return {"p": t3}

    out = f(a)
    attempt(events, lambda: loss_of(out, "p").backward(retain_graph=True))
    attempt(events, lambda: torch.autograd.grad(loss_of(out, "p"), (out["p"], a), allow_unused=True))
    attempt(events, lambda: loss_of(out, "p").backward(retain_graph=True))
    return events


def test_lerp_of_two_casts_differentiated_three_times():
    check(lerp_of_two_casts_differentiated_three_times_step, leaf(3, 3, dtype=torch.float16), allow_fallback=True)


def cast_and_its_sort_asked_for_with_unused_inputs_step(compile, a, b, c, d):
    events = []

    @compile()
    def f(a, b, c, d):
        t4 = a.narrow(0, 0, 1)
        t5 = t4.half()
        t6 = t5.sort(0).values
        t7 = torch.sigmoid(t4)
        return {"p": t6, "q": t5, "r": t7}

    out = f(a, b, c, d)
    attempt(
        events,
        lambda: torch.autograd.grad(
            loss_of(out, "q", "r"),
            (
                a,
                b,
                c,
                d,
            ),
            allow_unused=True,
        ),
    )
    attempt(
        events,
        lambda: torch.autograd.grad(
            loss_of(out, "q", "p"),
            (
                a,
                b,
                c,
                d,
            ),
            allow_unused=True,
        ),
    )
    return events


def test_cast_and_its_sort_asked_for_with_unused_inputs():
    check(
        cast_and_its_sort_asked_for_with_unused_inputs_step,
        leaf(1, 1),
        leaf(2, 1, 3, dtype=torch.bfloat16),
        leaf(1, 1, dtype=torch.float16),
        leaf(2, 1, 3),
        allow_fallback=True,
    )


def two_backwards_of_which_the_first_frees_a_part_step(compile, a, b, c):
    events = []

    @compile()
    def f(a, b, c):
        t3 = b - c
        t4 = c.type_as(c)
        t6 = F.linear(b, a.to(b.dtype))
        t7 = t6.new_zeros(t6.shape[0]).sum() + t6
        t8 = t7 @ a.to(t7.dtype).t()
        return {"p": t4, "q": t8, "r": t3}

    out = f(a, b, c)
    attempt(events, lambda: loss_of(out, "r", "p").backward())
    attempt(events, lambda: loss_of(out, "q", "p", "r").backward())
    return events


def test_two_backwards_of_which_the_first_frees_a_part():
    """What the first backward ran through is freed, and nothing else: the second raises where eager's does."""
    check(
        two_backwards_of_which_the_first_frees_a_part_step,
        constant(4, 4),
        leaf(2, 3, 4),
        leaf(dtype=torch.bfloat16),
        allow_fallback=True,
    )


def value_returned_and_divided_by_a_broadcast_one_step(compile, b, d):
    events = []

    @compile()
    def f(b, d):
        t4 = torch.einsum("...ij,...kj->...ik", d, d)
        t5 = t4 / (b.abs() + 1)
        return {"p": t5, "q": t4}

    out = f(b, d * 1)
    attempt(events, lambda: loss_of(out, "q", "p").backward())
    return events


def test_value_returned_and_divided_by_a_broadcast_one():
    check(value_returned_and_divided_by_a_broadcast_one_step, leaf(), leaf(1, 3, dtype=torch.bfloat16), allow_fallback=True)


def casts_beside_a_linear_under_autocast_step(compile, c, d):
    @compile()
    def f(c, d):
        return d * 2 + d, F.linear(d, c), torch.gather(d, 0, d.argsort(0))

    with torch.autocast("cpu", torch.bfloat16):
        out = f(c, d)
    return torch.autograd.grad(sum(value.float().sin().sum() for value in out), (c, d))


def test_casts_beside_a_linear_under_autocast():
    """Casts of inputs, and their other uses, send gradients in eager's order."""
    check(casts_beside_a_linear_under_autocast_step, leaf(2, 2), leaf(4, 16, 2))


def uses_around_a_returned_view_step(compile, d):
    @compile()
    def f(d):
        return d.exp() + d.cos(), d.view(-1), d.sin()

    a, view, b = f(d)
    return torch.autograd.grad((a * b).sum() + view.exp().sin().sum() + d.tanh().sum(), d)


def test_uses_around_a_returned_view():
    check(uses_around_a_returned_view_step, leaf(16, 16))


def views_of_a_shared_view_step(compile, d):
    @compile()
    def f(d):
        t = d.view(16, 16)
        return t.mT, t.view(8, 32), d.sin()

    a, b, c = f(d)
    return torch.autograd.grad(a.exp().sin().sum() + b.tanh().sum() + c.exp().sum() + d.cos().sum(), d)


def test_views_of_a_shared_view():
    check(views_of_a_shared_view_step, leaf(256), allow_fallback=True)


def view_of_an_intermediate_between_its_uses_step(compile, d):
    @compile()
    def f(d):
        t = d * 2
        a = t.exp()
        v = t.view(-1)
        b = t.cos()
        w = t.mT
        return t, a.sin(), v, b.tanh(), w, t.sigmoid()

    t, a, v, b, w, c = f(d)
    loss = a.sum() + v.sin().sum() + b.sum() + w.tanh().sum() + t.exp().sum() + c.sum()
    return torch.autograd.grad(loss, d)


def test_view_of_an_intermediate_between_its_uses():
    check(view_of_an_intermediate_between_its_uses_step, leaf(16, 16), allow_fallback=True)


def view_of_a_written_base_gets_its_node_late_step(compile, a, b):
    events = []

    @compile()
    def f(a, b):
        t4 = torch.log1p(a.abs())
        t6 = t4.squeeze()
        t4.mul_(b)
        t7 = t6.sum(0)
        return {"q": t7}

    out = f(a, b)
    attempt(events, lambda: torch.autograd.grad(loss_of(out, "q"), (b,), allow_unused=True))
    attempt(events, lambda: loss_of(out, "q").backward(retain_graph=True))
    return events


def test_view_of_a_written_base_gets_its_node_late():
    """A view whose base is modified gets its node late: after that of the op that uses the view."""
    check(view_of_a_written_base_gets_its_node_late_step, constant(2, 2), leaf())


def late_view_between_stages_step(compile, a, b):
    @compile()
    def f(a, b):
        t = a.abs()
        view = t.squeeze()
        t.mul_(b)
        return view.sum(0), t

    out, t = f(a, b)
    t.sin().sum().backward(retain_graph=True)
    (out * 3).sum().backward()
    return out, t


def test_late_view_between_stages():
    check(late_view_between_stages_step, constant(2, 1, 2), leaf(), allow_fallback=True)


def gradient_that_is_a_part_of_a_stack_is_not_added_to_step(compile, c):
    @compile()
    def f(c):
        t5 = c.unsqueeze(0).view(-1).sin().acos()
        return torch.stack([t5, c, t5], 0)

    loss_of({"q": f(c)}, "q").backward()


def test_gradient_that_is_a_part_of_a_stack_is_not_added_to():
    """A gradient that is a part of another tensor is not added to in place."""
    check(gradient_that_is_a_part_of_a_stack_is_not_added_to_step, leaf(3))


def modified_but_not_needed_step(compile, a, b):
    events = []
    c = b * 1
    out = compile(lambda a, b: a * b)(a, c)
    c.data.mul_(1)
    with torch.no_grad():
        c.mul_(2)
    attempt(events, lambda: out.sum().backward(inputs=[b]))
    return events


def test_modified_but_not_needed():
    """Eager checks all that a node saved, also what the wanted gradient does not depend on."""
    report = check(modified_but_not_needed_step, leaf(3), leaf(3))
    assert report.eager.values


def gradient_of_another_dtype_is_cast_before_it_is_added_step(compile, c):
    @compile()
    def f(c):
        t6 = c * 2
        t7 = sum(TwoOutputs.apply(t6))
        return t7, Product.apply(t6, torch.arange(4, dtype=torch.float64).sin())

    first, second = f(c)
    return torch.autograd.grad(first.sin().sum() + second.float().sin().sum(), c)


def test_gradient_of_another_dtype_is_cast_before_it_is_added():
    """A gradient of another dtype than the value's is cast before it is added to others."""
    check(gradient_of_another_dtype_is_cast_before_it_is_added_step, leaf(2, 3, 4), allow_fallback=True)


def unpacked_tensor_is_one_unbind_step(compile, t, w):
    @compile()
    def f(t, w):
        a, b = t
        return (a * w).sum() + (b * w).sum()

    (grad,) = torch.autograd.grad(f(t, w), t)
    return grad.reciprocal()  # tells 0 from -0


def test_unpacked_tensor_is_one_unbind():
    """Dynamo takes a tensor apart row by row: sums of gradients then lose the sign of a zero."""
    check(unpacked_tensor_is_one_unbind_step, leaf(2, 3), lambda: torch.tensor([-0.0, 1.0, 0.0]))


def gradient_of_a_leaf_that_others_are_made_of_is_not_added_to_step(compile, c):
    @compile()
    def f(c):
        t4 = torch.addcmul(c, c, c, value=0.5)
        return t4 @ t4 @ t4

    f(c).sin().sum().backward()


def test_gradient_of_a_leaf_that_others_are_made_of_is_not_added_to():
    """A gradient that goes to a leaf as it is, and that others of the same leaf are made of, is not added to before."""
    # The three gradients are added up before they reach the leaf: eager adds two of them in place.
    check(gradient_of_a_leaf_that_others_are_made_of_is_not_added_to_step, leaf(1, 1), compare_counters=False)


def autocast_copies_of_a_leaf_and_of_what_is_computed_step(compile, c):
    events = []

    @compile()
    def f(c):
        with torch.autocast("cpu", torch.float16):  # keeps one copy of a leaf, none of what is computed
            t4 = F.linear(c, c)
            t5 = t4.view_as(t4)
        return {"p": t4.cumsum(1), "q": t5.double() * 2, "r": t5.sin()}

    out = f(c)
    attempt(events, lambda: loss_of(out, "r", "p", "q").backward())
    out = f(c * 1)
    attempt(events, lambda: loss_of(out, "r", "p", "q").backward())
    return events


def test_autocast_copies_of_a_leaf_and_of_what_is_computed():
    """Whether an input is a leaf is guarded: autocast keeps one copy of a leaf, and none of anything else."""
    check(autocast_copies_of_a_leaf_and_of_what_is_computed_step, leaf(2, 1))


def view_between_the_uses_of_its_base_step(compile, a):
    events = []

    @compile()
    def f(a):
        t1 = a @ a
        t2 = t1 @ t1.to(t1.dtype)
        t4 = t2.view(t2.shape[0], -1).sum(1)
        t5 = t1[..., ::2]
        t7 = t2.mul(t4).add(t2, alpha=2)
        return {"p": t5, "q": t1, "r": t7}

    out = f(a * 1)
    attempt(events, lambda: loss_of(out, "q", "p", "r").backward(retain_graph=True))
    return events


def test_view_between_the_uses_of_its_base():
    """What a view sends to its base comes between what the uses before it and those after it send."""
    check(view_between_the_uses_of_its_base_step, leaf(3, 3), allow_fallback=True)
