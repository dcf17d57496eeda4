"""Programs that the fuzzer found wrong: views that are returned or written into. Each was a bug of gradc's once."""

# ruff: noqa: F841

from __future__ import annotations

from tests.fuzz.toolbox import F, TwoOutputs, attempt, checkpoint, constant, doubling, leaf, loss_of, torch
from tests.oracle import check


def part_of_a_split_written_into_outside_step(compile, c):
    events = []

    @compile()
    def f(c):
        t5 = torch.where(c > c, c, c)
        t8 = t5.split(1, 0)[0]
        return {"p": t8}

    out = f(c)
    events.append(out)
    attempt(events, lambda: out["p"].mul_(2) and None)
    return events


def test_part_of_a_split_written_into_outside():
    """Eager refuses to write into one of several views that one op returned."""
    check(part_of_a_split_written_into_outside_step, leaf(3, 4), allow_fallback=True)


def returned_view_that_linear_takes_twice_step(compile, a):
    events = []

    @compile()
    def f(a):
        t2 = a.view_as(a)
        t3 = F.linear(t2, t2.to(t2.dtype))
        t4 = torch.cat([t2, t3], 0)
        return {"p": t4, "q": t3, "r": t2}

    out = f(a * 1)
    attempt(events, lambda: loss_of(out, "p", "r", "q").backward(inputs=[a]))
    return events


def test_returned_view_that_linear_takes_twice():
    check(returned_view_that_linear_takes_twice_step, leaf(4, 4, dtype=torch.float16), allow_fallback=True)


def view_of_a_view_of_an_input_returned_and_used_step(compile, a):
    events = []

    @compile()
    def f(a):
        t2 = a.view(a.shape[0], -1)
        t3 = t2.unsqueeze(0)
        t4 = t3.tanh() ** 2 + t3
        return {"p": t4, "q": t3}

    out = f(a)
    attempt(events, lambda: loss_of(out, "p", "q").backward(inputs=[a]))
    return events


def test_view_of_a_view_of_an_input_returned_and_used():
    check(view_of_a_view_of_an_input_returned_and_used_step, leaf(3, 3), allow_fallback=True)


def returned_view_of_an_input_with_three_uses_step(compile, a):
    events = []

    @compile()
    def f(a):
        t1 = a.movedim(0, -1)
        t2 = torch.maximum(t1, t1)
        t3 = t1.float()
        t4 = torch.log1p(t1.abs())
        return {"p": t2, "q": t4, "r": t3, "s": t1}

    out = f(a)
    attempt(events, lambda: loss_of(out, "p", "q", "r", "s").backward())
    return events


def test_returned_view_of_an_input_with_three_uses():
    check(returned_view_of_an_input_with_three_uses_step, leaf(1, 3), allow_fallback=True)


def returned_view_that_nothing_inside_uses_step(compile, c, d):
    events = []

    @compile()
    def f(c, d):
        t5 = F.leaky_relu(c, 0.1)
        t6 = d.view(d.shape[0], -1)
        t7 = t5.amax(0)
        return {"p": t7, "q": t6, "r": t5}

    out = f(c, d)
    attempt(events, lambda: torch.autograd.grad(loss_of(out, "q", "p"), (out["r"], d), allow_unused=True))
    attempt(events, lambda: loss_of(out, "p", "q", "r").backward())
    return events


def test_returned_view_that_nothing_inside_uses():
    check(returned_view_that_nothing_inside_uses_step, leaf(3, 4), leaf(3, 4), allow_fallback=True)


def diagonal_of_an_einsum_of_a_transposed_input_step(compile, b):
    events = []

    @compile()
    def f(b):
        t2 = torch.einsum("...ij,...kj->...ik", b, b)
        t3 = t2.diagonal()
        return {"p": t3}

    out = f(b.mT.contiguous().mT)
    attempt(events, lambda: loss_of(out, "p").backward())
    return events


def test_diagonal_of_an_einsum_of_a_transposed_input():
    check(diagonal_of_an_einsum_of_a_transposed_input_step, leaf(1, 3), allow_fallback=True)


def returned_squeeze_beside_its_source_in_a_cat_step(compile, b):
    @compile()
    def f(b):
        t2 = b.squeeze()
        return {"p": torch.cat([t2, b], 0), "q": t2}

    loss_of(f(b), "p", "q").backward()


def test_returned_squeeze_beside_its_source_in_a_cat():
    """An op that has nothing to squeeze still returns a view."""
    check(returned_squeeze_beside_its_source_in_a_cat_step, leaf(4, dtype=torch.float64))


def view_of_a_view_that_was_written_through_detach_step(compile, a):
    @compile()
    def f(a):
        t3 = a.transpose(0, -1)
        t3.detach().mul_(1)
        return t3, t3.expand(2, *t3.shape).view(2, -1)

    return f(a)


def test_view_of_a_view_that_was_written_through_detach():
    """A view of a view that was written into has the base for its source, not that view."""
    check(view_of_a_view_that_was_written_through_detach_step, leaf(1, 1), allow_fallback=True)


def second_order_of_an_op_in_place_on_a_view_step(compile, b):
    @compile()
    def f(b):
        t2 = torch.einsum("...ij,...kj->...ik", b, b)
        t2.tanh_()
        return t2

    (slope,) = torch.autograd.grad(f(b).sum(), b, create_graph=True)
    f(b).sum().backward()
    return torch.autograd.grad(slope.square().sum(), b)


def test_second_order_of_an_op_in_place_on_a_view():
    """An in-place op on a view saves tensors, too, though its node hides in a CopySlices."""
    check(second_order_of_an_op_in_place_on_a_view_step, leaf(2, 1))


def copy_slices_refuses_a_second_backward_step(compile, c):
    events = []

    @compile()
    def f(c):
        t5 = F.pad(c, (1, 0))
        t5.transpose(0, -1)[0].mul_(3)
        return t5

    out = f(c)
    attempt(events, lambda: torch.autograd.grad(out.sum(), c))
    attempt(events, lambda: out.sum().backward(retain_graph=True))
    return events


def test_copy_slices_refuses_a_second_backward():
    """A CopySlices refuses a second backward even where it saved nothing."""
    check(copy_slices_refuses_a_second_backward_step, leaf(3, 4))


def input_of_symbolic_sizes_written_through_detach_step(compile, c):
    @compile(dynamic=True)
    def f(c):
        c.detach().mul_(1)
        return c * 2

    return f(c.mT.contiguous().mT)


def test_input_of_symbolic_sizes_written_through_detach():
    """Whether Dynamo's fake input is a leaf is asked outside of the mode that records."""
    check(input_of_symbolic_sizes_written_through_detach_step, leaf(1, 2), allow_fallback=True)


def part_of_an_input_after_a_write_through_detach_step(compile, c):
    @compile()
    def f(c):
        c.detach().mul_(1)
        return c.narrow(0, 0, 1)

    q = f(c)
    q.register_hook(doubling)
    return q.grad_fn.name(), torch.autograd.grad(q.sum(), c)


def test_part_of_an_input_after_a_write_through_detach():
    """A view of an input is made after the writes that it follows. On one made before, torch crashes at the hook."""
    check(part_of_an_input_after_a_write_through_detach_step, leaf(2), allow_fallback=True)


def detached_values_written_into_and_returned_step(compile, a, b):
    events = []

    @compile()
    def f(a, b):
        t3 = b.detach()
        t3.as_strided(t3.shape, t3.stride()).add_(F.leaky_relu(a))
        t5 = b * 2
        t6 = t5.detach()
        t6.mul_(a)
        return {"p": t3, "q": t5, "r": t6}

    out = f(a, b)
    attempt(events, lambda: out["p"].retain_grad())
    attempt(events, lambda: loss_of(out, "p", "q", "r").backward())
    return events


def test_detached_values_written_into_and_returned():
    """A detached view that is written into has a history of its own."""
    check(detached_values_written_into_and_returned_step, leaf(3), leaf(3), allow_fallback=True)


def view_of_a_value_overwritten_behind_a_checkpoint_step(compile, a, b):
    events = []

    @compile()
    def f(a, b):
        t2 = a.sum()
        t3 = F.silu(b)
        t5 = t3.view(-1)
        t6 = b.view(-1)
        t7 = checkpoint(lambda t: F.dropout(t.sin(), 0.5) * 2, t6, use_reentrant=False)
        t3.copy_(t2)
        return {"p": t5}

    out = f(a * 1, b)
    return events


def test_view_of_a_value_overwritten_behind_a_checkpoint():
    """Where Dynamo fails by itself, the function runs as in eager."""
    check(view_of_a_value_overwritten_behind_a_checkpoint_step, leaf(2, 2), constant(2, 2), allow_fallback=True)


def view_of_a_detached_input_overwritten_behind_a_gradient_step(compile, a, b):
    events = []

    @compile()
    def f(a, b):
        t2 = b @ a
        t3 = a.detach()
        t10 = t3.transpose(0, -1)
        t11 = torch.autograd.grad(t2.sin().sum(), b, create_graph=True, materialize_grads=True)[0]
        t10.copy_(t2[3])
        return {}

    out = f(a, b)
    return events


def test_view_of_a_detached_input_overwritten_behind_a_gradient():
    """What tracing cannot do, eager does."""
    check(view_of_a_detached_input_overwritten_behind_a_gradient_step, leaf(3, 3), leaf(4, 3), allow_fallback=True)


def transposed_input_written_through_detach_beside_another_input_step(compile, b, c):
    events = []

    @compile()
    def f(b, c):
        t8 = c.movedim(0, -1)
        t8.detach().mul_(1)
        return {"p": t8, "r": b}

    out = f(b, c)
    attempt(events, lambda: loss_of(out, "p", "r").backward())
    return events


def test_transposed_input_written_through_detach_beside_another_input():
    """A view that is made again is made in eager's grad mode and place."""
    check(
        transposed_input_written_through_detach_beside_another_input_step,
        leaf(1, 2),
        leaf(1, 2, dtype=torch.float16),
        allow_fallback=True,
    )


def transposed_input_written_through_detach_step(compile, d):
    events = []

    @compile()
    def f(d):
        t4 = d.transpose(0, -1)
        t4.detach().mul_(1)
        return {"p": t4}

    out = f(d)
    attempt(events, lambda: loss_of(out, "p").backward(retain_graph=True))
    return events


def test_transposed_input_written_through_detach():
    """A view that is made again is made in eager's grad mode and place."""
    check(transposed_input_written_through_detach_step, leaf(2, 1, dtype=torch.float16), allow_fallback=True)


def input_overwritten_after_a_function_of_a_part_step(compile, a, b):
    events = []

    @compile()
    def f(a, b):
        t3 = b[..., ::2]
        t5 = sum(TwoOutputs.apply(t3))
        t7 = b.to(b.dtype)
        t7.copy_(a)
        return {"q": t3}

    out = f(a, b)
    attempt(events, lambda: out["p"].backward(torch.ones_like(out["p"])))
    return events


def test_input_overwritten_after_a_function_of_a_part():
    check(
        input_overwritten_after_a_function_of_a_part_step, leaf(3, 4), constant(3, 4, dtype=torch.float64), allow_fallback=True
    )


def saved_result_of_a_view_returned_with_its_base_step(compile, a):
    events = []

    @compile()
    def f(a):
        t1 = a.reciprocal().clamp(-2, 2)
        t2 = t1.as_strided(t1.shape, t1.stride())
        t2.tanh_()
        torch._dynamo.graph_break()
        return {"p": t2 @ t1.t()}

    out = f(a)
    grad = torch.autograd.grad(loss_of(out, "p"), a, create_graph=True)[0]
    return events, torch.autograd.grad(grad.square().sum(), a)


def test_saved_result_of_a_view_returned_with_its_base():
    """Second order sends a gradient to what tanh_ saved, which is the view: it is added up there, not inside of the region."""
    for _ in range(10):
        check(saved_result_of_a_view_returned_with_its_base_step, leaf(3, 4), allow_fallback=True)


def saved_result_of_a_view_used_several_times_step(compile, a):
    @compile()
    def f(a):
        t1 = (a * 2)[1:]
        t1.tanh_()
        return t1

    out = f(a)
    loss = loss_of({"p": out, "q": out * 3, "r": out * out}, "p", "q", "r")
    (grad,) = torch.autograd.grad(loss, a, create_graph=True)
    (slope,) = torch.autograd.grad(grad.square().sum(), a)
    out = f(a)
    out.mul_(2)
    return grad, slope, out._base, torch.autograd.grad(out.sum(), a)


def test_saved_result_of_a_view_used_several_times():
    """What second order sends to the saved result comes in first, the others are added to it."""
    for _ in range(10):
        check(saved_result_of_a_view_used_several_times_step, leaf(3, 4))
