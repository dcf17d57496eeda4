"""Programs that the fuzzer found wrong: when hooks run, and on what. Each was a bug of gradc's once."""

from __future__ import annotations

from tests.fuzz.toolbox import F, attempt, checkpoint, constant, doubling, leaf, loss_of, noting, torch
from tests.oracle import check


def hook_on_a_returned_window_of_an_input_step(compile, a, c, d):
    events = []

    @compile()
    def f(a, c, d):
        t4 = c.unfold(0, 1, 1)
        t5 = F.smooth_l1_loss(d, a.expand_as(d).to(d.dtype))
        t6 = t4.unbind(2)[1]
        t7 = c.clamp(-1, 1)
        return {"p": t4, "q": t6, "r": t5, "s": t7}

    out = f(a, c, d)
    attempt(events, lambda: out["p"].register_hook(doubling) and None)
    attempt(events, lambda: torch.autograd.grad(loss_of(out, "s", "q", "r", "p"), (out["q"], c), allow_unused=True))
    return events


def test_hook_on_a_returned_window_of_an_input():
    """A hook outside, on a view that another returned view is made of inside."""
    check(hook_on_a_returned_window_of_an_input_step, constant(), leaf(2, 3, 4), leaf(), allow_fallback=True)


def view_loses_its_hooks_when_written_into_step(compile, a, c):
    events = []
    out = compile(lambda a, c: (a @ c).view(-1))(a, c)
    out.register_hook(doubling)
    out.mul_(2)
    (out * out).sum().backward()
    return events, out


def test_view_loses_its_hooks_when_written_into():
    """A view loses its hooks when it is modified in place."""
    check(view_loses_its_hooks_when_written_into_step, leaf(3, 3), leaf(3, 3))


def hook_inside_on_a_row_written_through_detach_step(compile, b, c):
    events = []

    @compile()
    def f(b, c):
        t3 = b / 2
        t4 = c @ c
        t6 = t4[2]
        checkpoint(torch.tanh, t3, use_reentrant=False)
        t6.register_hook(doubling)  # torch crashes if this is done behind the write
        t3.clamp_(-1, 1)
        t6.detach().mul_(1)
        return {"q": t4, "r": t6}

    out = f(b, c)
    attempt(events, lambda: loss_of(out, "q", "r").backward())
    return events


def test_hook_inside_on_a_row_written_through_detach():
    check(hook_inside_on_a_row_written_through_detach_step, constant(4, 3), leaf(4, 4), allow_fallback=True)


def last_view_of_an_input_runs_first_step(compile, b, c):
    events = []

    @compile()
    def f(b, c):
        return b.log_softmax(-1), c.unsqueeze(0)

    p, q = f(b, c)
    c.register_hook(noting(events, "c"))
    p.register_hook(noting(events, "p"))
    (p.sin().sum() + q.sin().sum()).backward()
    return events


def test_last_view_of_an_input_runs_first():
    """A view of an input that comes last in the region runs first in backward, hooks and all."""
    check(last_view_of_an_input_runs_first_step, leaf(2, 4), leaf(4))


def hook_of_a_leaf_that_autocast_casts_step(compile, b):
    events = []

    @compile()
    def f(b):
        t2 = b.softmax(0)
        t3 = torch.matmul(b, b.mT)
        return {"p": t2, "q": t3}

    attempt(events, lambda: b.register_hook(noting(events, "b")) and None)
    with torch.autocast("cpu", torch.bfloat16):
        out = f(b)
    attempt(events, lambda: loss_of(out, "q", "p").backward(retain_graph=True))
    return events


def test_hook_of_a_leaf_that_autocast_casts():
    """Casts of weights run where eager's do, and so do the hooks of the weights."""
    check(hook_of_a_leaf_that_autocast_casts_step, leaf(4, 4), allow_fallback=True)


def hooks_of_a_leaf_and_of_an_output_under_autocast_step(compile, a, b):
    events = []

    @compile()
    def f(a, b):
        t2 = b.roll(1, 0)
        t3 = b.float().std()
        t4 = t2 @ a
        t5 = torch.where(t2 > t4, t2, t4)
        t7 = t5.view(-1)
        return {"p": t3, "q": t2, "r": t7, "s": t5}

    attempt(events, lambda: a.register_hook(noting(events, "a")) and None)
    with torch.autocast("cpu", torch.float16):
        out = f(a, b)
    attempt(events, lambda: out["q"].register_hook(noting(events, "q")) and None)
    attempt(events, lambda: loss_of(out, "r", "p", "s", "q").backward(retain_graph=True))
    return events


def test_hooks_of_a_leaf_and_of_an_output_under_autocast():
    """Casts of weights and returned views run where eager's do, and so do the hooks around them."""
    check(hooks_of_a_leaf_and_of_an_output_under_autocast_step, leaf(3, 3), leaf(2, 1, 3), allow_fallback=True)


def hook_of_a_value_that_contiguous_returns_as_it_is_step(compile, a, b):
    events = []

    @compile()
    def f(a, b):
        t3 = torch.einsum("...ij,...kj->...ik", b, b)
        t4 = a - a
        t6 = t3.contiguous()
        return {"p": t3, "q": t4, "r": t6}

    out = f(a, b)
    attempt(events, lambda: a.register_hook(noting(events, "a")) and None)
    attempt(events, lambda: out["r"].register_hook(noting(events, "r")) and None)
    attempt(events, lambda: loss_of(out, "p", "q", "r").backward())
    return events


def test_hook_of_a_value_that_contiguous_returns_as_it_is():
    check(hook_of_a_value_that_contiguous_returns_as_it_is_step, leaf(), leaf(3, 1, dtype=torch.float64), allow_fallback=True)


def hook_of_an_output_zeroed_in_place_step(compile, a, b, c):
    events = []

    @compile()
    def f(a, b, c):
        t4 = F.linear(c, c.to(c.dtype))
        t4.zero_()
        return {"p": t4}

    out = f(a, b, c)
    attempt(events, lambda: out["p"].register_hook(noting(events, "p")) and None)
    attempt(
        events,
        lambda: torch.autograd.grad(
            torch.autograd.grad(loss_of(out, "p"), c, create_graph=True)[0].float().square().sum(),
            (
                a,
                b,
                c,
            ),
            allow_unused=True,
        ),
    )
    return events


def test_hook_of_an_output_zeroed_in_place():
    """A hook of an output is passed over where gradients come in for saved values alone."""
    check(hook_of_an_output_zeroed_in_place_step, leaf(3), leaf(3, 3), leaf(3, 1, dtype=torch.float16), allow_fallback=True)


def hook_of_a_leaf_that_eager_sends_nothing_step(compile, a, b):
    events = []

    @compile()
    def f(a, b):
        t4 = F.normalize(a.float(), dim=1)
        t6 = t4.half()
        t8 = t6 * b
        t8.zero_()
        return {"p": t8}

    out = f(a, b)
    attempt(events, lambda: b.register_hook(doubling) and None)
    attempt(
        events,
        lambda: torch.autograd.grad(
            torch.autograd.grad(loss_of(out, "p"), b, create_graph=True)[0].float().square().sum(), (a, b), allow_unused=True
        ),
    )
    return events


def test_hook_of_a_leaf_that_eager_sends_nothing():
    """Gradients that come in for a saved value alone do not reach what eager's nodes before it do not lead to."""
    check(hook_of_a_leaf_that_eager_sends_nothing_step, leaf(1, 1), leaf(1, 1), allow_fallback=True)
