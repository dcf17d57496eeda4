"""Programs that the fuzzer found wrong, shrunk: each was a bug of gradc's once."""

# ruff: noqa: F841

from __future__ import annotations

from tests.fuzz.toolbox import (
    F,
    Product,
    Shrink,
    TwoOutputs,
    attempt,
    checkpoint,
    constant,
    doubling,
    leaf,
    loss_of,
    noting,
    torch,
)
from tests.oracle import check


def seed_0_program_9_step(compile, a):
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


def test_seed_0_program_9():
    check(seed_0_program_9_step, leaf(1, 1, dtype=torch.float64), allow_fallback=True)


def seed_0_program_27_step(compile, c):
    events = []

    @compile()
    def f(c):
        t4 = torch.lerp(c.double(), c.double(), 0.3)
        return {"p": t4}

    out = f(c)
    attempt(events, lambda: loss_of(out, "p").backward())
    attempt(events, lambda: torch.autograd.grad(loss_of(out, "p"), (out["p"], c), allow_unused=True))
    return events


def test_seed_0_program_27():
    check(seed_0_program_27_step, leaf(dtype=torch.float16), allow_fallback=True)


def seed_0_program_44_step(compile, a, b, c, d):
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


def test_seed_0_program_44():
    check(
        seed_0_program_44_step,
        leaf(1, 1),
        leaf(2, 1, 3, dtype=torch.bfloat16),
        leaf(1, 1, dtype=torch.float16),
        leaf(2, 1, 3),
        allow_fallback=True,
    )


def seed_0_program_46_step(compile, c):
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


def test_seed_0_program_46():
    check(seed_0_program_46_step, leaf(3, 4), allow_fallback=True)


def seed_0_program_45_step(compile, b):
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


def test_seed_0_program_45():
    check(seed_0_program_45_step, leaf(2, 4, 2), allow_fallback=True)


def seed_0_program_78_step(compile, a, b, c):
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


def test_seed_0_program_78():
    check(seed_0_program_78_step, constant(4, 4), leaf(2, 3, 4), leaf(dtype=torch.bfloat16), allow_fallback=True)


def seed_0_program_83_step(compile, a, b):
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


def test_seed_0_program_83():
    check(seed_0_program_83_step, leaf(3, 2), leaf(2, 3, 2), allow_fallback=True)


def seed_1_program_16_step(compile, a):
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


def test_seed_1_program_16():
    check(seed_1_program_16_step, leaf(4, 4, dtype=torch.float16), allow_fallback=True)


def seed_1_program_47_step(compile, a):
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


def test_seed_1_program_47():
    check(seed_1_program_47_step, leaf(4), allow_fallback=True)


def seed_1_program_26_step(compile, a, c, d):
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


def test_seed_1_program_26():
    check(
        seed_1_program_26_step,
        leaf(2, dtype=torch.float16),
        leaf(2, 1),
        constant(2, 2, dtype=torch.bfloat16),
        allow_fallback=True,
    )


def seed_1_program_71_step(compile, b, c):
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


def test_seed_1_program_71():
    check(seed_1_program_71_step, leaf(2, 3, dtype=torch.float64), leaf(2, 2, 3, dtype=torch.bfloat16), allow_fallback=True)


def seed_1_program_38_step(compile, b):
    events = []

    @compile(dynamic=True)
    def f(b):
        t3 = F.linear(b, b.to(b.dtype))
        t4 = torch.autograd.grad(t3.sin().sum(), b, create_graph=True, materialize_grads=True)[0]
        return {}

    out = f(b)
    return events


def test_seed_1_program_38():
    check(seed_1_program_38_step, leaf(3, 4), allow_fallback=True)


def seed_1_program_101_step(compile, a, c):
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


def test_seed_1_program_101():
    check(seed_1_program_101_step, leaf(3, 4), leaf(4), allow_fallback=True)


def seed_2_program_14_step(compile, b, c):
    events = []

    @compile()
    def f(b, c):
        with torch.no_grad():
            t9 = c.unsqueeze(0)
        t13 = t9 @ t9.to(t9.dtype).t()
        return {}

    out = f(b * 1, c)
    return events


def test_seed_2_program_14():
    check(seed_2_program_14_step, leaf(), leaf(3), allow_fallback=True)


def seed_2_program_61_step(compile, a):
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


def test_seed_2_program_61():
    check(seed_2_program_61_step, leaf(3, 3), allow_fallback=True)


def seed_2_program_93_step(compile, a, b, c):
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


def test_seed_2_program_93():
    check(seed_2_program_93_step, leaf(2, 3, 4), leaf(4, dtype=torch.float16), leaf(4), allow_fallback=True)


def seed_2_program_117_step(compile, a):
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


def test_seed_2_program_117():
    check(seed_2_program_117_step, leaf(1, 3), allow_fallback=True)


def seed_2_program_18_step(compile, a):
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


def test_seed_2_program_18():
    check(seed_2_program_18_step, leaf(3, 3, dtype=torch.float16), allow_fallback=True)


def seed_2_program_26_step(compile, a, b, c):
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


def test_seed_2_program_26():
    check(
        seed_2_program_26_step,
        constant(),
        leaf(4, 4, dtype=torch.bfloat16),
        constant(4, 4, dtype=torch.float64),
        allow_fallback=True,
    )


def seed_3_program_79_step(compile, a, c, d):
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


def test_seed_3_program_79():
    check(seed_3_program_79_step, constant(), leaf(2, 3, 4), leaf(), allow_fallback=True)


def seed_3_program_22_step(compile, b, c):
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


def test_seed_3_program_22():
    check(seed_3_program_22_step, constant(3, 3), leaf(3), allow_fallback=True)


def seed_3_program_48_step(compile, b):
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


def test_seed_3_program_48():
    check(seed_3_program_48_step, leaf(2, 2), allow_fallback=True)


def seed_3_program_210_step(compile, c, d):
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


def test_seed_3_program_210():
    check(seed_3_program_210_step, leaf(3, 4), leaf(3, 4), allow_fallback=True)


def seed_3_program_255_step(compile, b, c):
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


def test_seed_3_program_255():
    check(seed_3_program_255_step, leaf(3, 3), leaf(3, 1, dtype=torch.float64), allow_fallback=True)


def seed_3_program_264_step(compile, b, c):
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


def test_seed_3_program_264():
    check(seed_3_program_264_step, constant(dtype=torch.bfloat16), leaf(2, 1), allow_fallback=True)


def seed_3_program_4_step(compile, b, d):
    events = []

    @compile()
    def f(b, d):
        t4 = torch.einsum("...ij,...kj->...ik", d, d)
        t5 = t4 / (b.abs() + 1)
        return {"p": t5, "q": t4}

    out = f(b, d * 1)
    attempt(events, lambda: loss_of(out, "q", "p").backward())
    return events


def test_seed_3_program_4():
    check(seed_3_program_4_step, leaf(), leaf(1, 3, dtype=torch.bfloat16), allow_fallback=True)


def seed_3_program_259_step(compile, b):
    events = []

    @compile()
    def f(b):
        t2 = torch.einsum("...ij,...kj->...ik", b, b)
        t3 = t2.diagonal()
        return {"p": t3}

    out = f(b.mT.contiguous().mT)
    attempt(events, lambda: loss_of(out, "p").backward())
    return events


def test_seed_3_program_259():
    check(seed_3_program_259_step, leaf(1, 3), allow_fallback=True)


def seed_2_program_146_step(compile, c, d):
    @compile()
    def f(c, d):
        return d * 2 + d, F.linear(d, c), torch.gather(d, 0, d.argsort(0))

    with torch.autocast("cpu", torch.bfloat16):
        out = f(c, d)
    return torch.autograd.grad(sum(value.float().sin().sum() for value in out), (c, d))


def test_seed_2_program_146():
    check(seed_2_program_146_step, leaf(2, 2), leaf(4, 16, 2))


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


def seed_11_program_31_step(compile, a, b):
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


def test_seed_11_program_31():
    """A view whose base is modified gets its node late: after that of the op that uses the view."""
    check(seed_11_program_31_step, constant(2, 2), leaf())


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


def seed_25_program_77_step(compile, c):
    @compile()
    def f(c):
        t5 = c.unsqueeze(0).view(-1).sin().acos()
        return torch.stack([t5, c, t5], 0)

    loss_of({"q": f(c)}, "q").backward()


def test_seed_25_program_77():
    """A gradient that is a part of another tensor is not added to in place."""
    check(seed_25_program_77_step, leaf(3))


def seed_25_program_193_step(compile, b):
    @compile()
    def f(b):
        t2 = b.squeeze()
        return {"p": torch.cat([t2, b], 0), "q": t2}

    loss_of(f(b), "p", "q").backward()


def test_seed_25_program_193():
    check(seed_25_program_193_step, leaf(4, dtype=torch.float64))


def seed_25_program_157_step(compile, a):
    f = compile(lambda a: F.gelu(torch.einsum("...ij,...kj->...ik", a, a)), dynamic=True)
    (slope,) = torch.autograd.grad(f(a).sin().sum(), a, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), a)


def test_seed_25_program_157():
    check(seed_25_program_157_step, leaf(2, 1, dtype=torch.float64), allow_fallback=True)


def seed_25_program_206_step(compile, a):
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


def test_seed_25_program_206():
    check(seed_25_program_206_step, leaf(2, 1, 2), allow_fallback=True)


def seed_23_program_185_step(compile, a):
    @compile()
    def f(a):
        t3 = a.transpose(0, -1)
        t3.detach().mul_(1)
        return t3, t3.expand(2, *t3.shape).view(2, -1)

    return f(a)


def test_seed_23_program_185():
    check(seed_23_program_185_step, leaf(1, 1), allow_fallback=True)


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


def seed_300_program_144_step(compile, b):
    @compile()
    def f(b):
        t2 = torch.einsum("...ij,...kj->...ik", b, b)
        t2.tanh_()
        return t2

    (slope,) = torch.autograd.grad(f(b).sum(), b, create_graph=True)
    f(b).sum().backward()
    return torch.autograd.grad(slope.square().sum(), b)


def test_seed_300_program_144():
    """An in-place op on a view saves tensors, too, though its node hides in a CopySlices."""
    check(seed_300_program_144_step, leaf(2, 1))


def seed_300_program_628_step(compile, c):
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


def test_seed_300_program_628():
    """A CopySlices refuses a second backward even where it saved nothing."""
    check(seed_300_program_628_step, leaf(3, 4))


def seed_300_program_565_step(compile, b):
    @compile()
    def f(b):
        with torch.no_grad():
            t10 = b.mT[..., ::2]
        return t10.float(), t10

    return f(b.split(1, 1)[2])


def test_seed_300_program_565():
    """A view made without recording says that it needs a gradient because its base does."""
    check(seed_300_program_565_step, leaf(3, 3, dtype=torch.float16), allow_fallback=True)


def seed_300_program_448_step(compile, a):
    f = compile(lambda a: a.exp().abs(), dynamic=True)
    grads = []
    for values in (a, a[:-1]):
        (slope,) = torch.autograd.grad(f(values).square().sum(), a, create_graph=True)
        grads += torch.autograd.grad(slope.square().sum(), a)
    return grads


def test_seed_300_program_448():
    """A formula traced late must not fix the size that all other calls share."""
    check(seed_300_program_448_step, leaf(4), allow_fallback=True)


def seed_300_program_705_step(compile, c):
    @compile(dynamic=True)
    def f(c):
        c.detach().mul_(1)
        return c * 2

    return f(c.mT.contiguous().mT)


def test_seed_300_program_705():
    """Whether Dynamo's fake input is a leaf is asked outside of the mode that records."""
    check(seed_300_program_705_step, leaf(1, 2), allow_fallback=True)


def seed_1000_program_737_step(compile, b):
    @compile()
    def f(b):
        return b.abs().cumprod(0)

    (slope,) = torch.autograd.grad(f(b).sin().sum(), b, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), b)


def test_seed_1000_program_737():
    """Formulas that ask whether a tensor is a subclass ask under create_graph, too."""
    check(seed_1000_program_737_step, leaf(5, 3), allow_fallback=True)


def seed_1001_program_103_step(compile, c):
    @compile()
    def f(c):
        t6 = c * 2
        t7 = sum(TwoOutputs.apply(t6))
        return t7, Product.apply(t6, torch.arange(4, dtype=torch.float64).sin())

    first, second = f(c)
    return torch.autograd.grad(first.sin().sum() + second.float().sin().sum(), c)


def test_seed_1001_program_103():
    """A gradient of another dtype than the value's is cast before it is added to others."""
    check(seed_1001_program_103_step, leaf(2, 3, 4), allow_fallback=True)


def seed_1001_program_273_step(compile, a):
    @compile(dynamic=True)
    def f(a):
        t2 = a.chunk(2, 1)[0]
        return t2 @ t2.t()

    (slope,) = torch.autograd.grad(f(a * 1).sin().sum(), a, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), a)


def test_seed_1001_program_273():
    """Of two symbolic sizes that the first trace found equal, a derivative knows one."""
    check(seed_1001_program_273_step, leaf(4, 2), allow_fallback=True)


def unpacked_step(compile, t, w):
    @compile()
    def f(t, w):
        a, b = t
        return (a * w).sum() + (b * w).sum()

    (grad,) = torch.autograd.grad(f(t, w), t)
    return grad.reciprocal()  # tells 0 from -0


def test_unpacked_tensor_is_one_unbind():
    """Dynamo takes a tensor apart row by row: sums of gradients then lose the sign of a zero."""
    check(unpacked_step, leaf(2, 3), lambda: torch.tensor([-0.0, 1.0, 0.0]))


def seed_1010_program_573_step(compile, c):
    @compile()
    def f(c):
        c.detach().mul_(1)
        return c.narrow(0, 0, 1)

    q = f(c)
    q.register_hook(doubling)
    return q.grad_fn.name(), torch.autograd.grad(q.sum(), c)


def test_seed_1010_program_573():
    """A view of an input is made after the writes that it follows. On one made before, torch crashes at the hook."""
    check(seed_1010_program_573_step, leaf(2), allow_fallback=True)


def seed_1002_program_725_step(compile, a, c):
    events = []
    out = compile(lambda a, c: (a @ c).view(-1))(a, c)
    out.register_hook(doubling)
    out.mul_(2)
    (out * out).sum().backward()
    return events, out


def test_seed_1002_program_725():
    """A view loses its hooks when it is modified in place."""
    check(seed_1002_program_725_step, leaf(3, 3), leaf(3, 3))


def seed_1002_program_141_step(compile, a):
    out = compile(lambda a: a @ a)(a)
    with torch.autocast("cpu", torch.bfloat16):
        (slope,) = torch.autograd.grad(out.sin().sum(), a, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), a)


def test_seed_1002_program_141():
    """Autocast keeps its copies of leaves: a gradient that comes in is none, and is cast anew for each use."""
    check(seed_1002_program_141_step, leaf(3, 3))


def seed_1004_program_784_step(compile, b, c):
    events = []

    @compile()
    def f(b, c):
        return b.log_softmax(-1), c.unsqueeze(0)

    p, q = f(b, c)
    c.register_hook(noting(events, "c"))
    p.register_hook(noting(events, "p"))
    (p.sin().sum() + q.sin().sum()).backward()
    return events


def test_seed_1004_program_784():
    """A view of an input that comes last in the region runs first in backward, hooks and all."""
    check(seed_1004_program_784_step, leaf(2, 4), leaf(4))


def seed_1008_program_957_step(compile, c):
    @compile()
    def f(c):
        t4 = torch.addcmul(c, c, c, value=0.5)
        return t4 @ t4 @ t4

    f(c).sin().sum().backward()


def test_seed_1008_program_957():
    """A gradient that goes to a leaf as it is, and that others of the same leaf are made of, is not added to before."""
    check(seed_1008_program_957_step, leaf(1, 1))


def seed_1005_program_707_step(compile, a):
    f = compile(lambda a: a.diff(dim=1).expand(2, -1, -1), dynamic=True)
    (slope,) = torch.autograd.grad(f(a).sum(0).mT.contiguous().mT.sin().sum(), a, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), a)


def test_seed_1005_program_707():
    check(seed_1005_program_707_step, leaf(4, 3), allow_fallback=True)


def odd_gradient_step(compile, a):
    out = compile(lambda a: a.exp(), dynamic=True)(a)
    odd = torch.randn(4, 6)[:, ::2].requires_grad_()
    (slope,) = torch.autograd.grad(out, a, odd, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), (a, odd))


def test_an_odd_gradient_of_a_dynamic_shape_is_differentiated_eagerly():
    check(odd_gradient_step, leaf(4, 3), allow_fallback=True)


def seed_1009_program_839_step(compile, a):
    @compile()
    def f(a):
        t5 = a.atan().mT
        with torch.no_grad():
            t7 = t5.view_as(t5)
        return F.smooth_l1_loss(t7, a.sin())

    (slope,) = torch.autograd.grad(f(a), a, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), a)


def test_seed_1009_program_839():
    check(seed_1009_program_839_step, leaf(3, 3), allow_fallback=True)


def seed_2001_program_24_step(compile, c):
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


def test_seed_2001_program_24():
    check(seed_2001_program_24_step, leaf(2, 1))


def seed_2001_program_367_step(compile, a, b):
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


def test_seed_2001_program_367():
    check(seed_2001_program_367_step, leaf(3), leaf(3), allow_fallback=True)


def seed_2003_program_176_step(compile, a, b):
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


def test_seed_2003_program_176():
    check(seed_2003_program_176_step, leaf(2, 2), constant(2, 2), allow_fallback=True)


def seed_2003_program_613_step(compile, b):
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


def test_seed_2003_program_613():
    check(seed_2003_program_613_step, leaf(4, 4), allow_fallback=True)


def seed_2003_program_1165_step(compile, a):
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


def test_seed_2003_program_1165():
    check(seed_2003_program_1165_step, leaf(4, dtype=torch.float64), allow_fallback=True)


def seed_2003_program_1456_step(compile, a, b):
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


def test_seed_2003_program_1456():
    check(seed_2003_program_1456_step, leaf(4), leaf(2, 4, dtype=torch.float64), allow_fallback=True)


def seed_2004_program_1012_step(compile, a, b):
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


def test_seed_2004_program_1012():
    check(seed_2004_program_1012_step, constant(1, 2), leaf(1, 2, dtype=torch.float64), allow_fallback=True)


def seed_2004_program_1889_step(compile, a, b):
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


def test_seed_2004_program_1889():
    check(seed_2004_program_1889_step, leaf(3, 3), leaf(2, 1, 3), allow_fallback=True)


def seed_3002_program_850_step(compile, b, c):
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


def test_seed_3002_program_850():
    check(seed_3002_program_850_step, constant(4, 3), leaf(4, 4), allow_fallback=True)


def seed_5006_program_1065_step(compile, a, b):
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


def test_seed_5006_program_1065():
    check(seed_5006_program_1065_step, leaf(3, 3), leaf(4, 3), allow_fallback=True)


def seed_5001_program_1959_step(compile, a, b, c):
    events = []

    @compile()
    def f(a, b, c):
        t4 = F.linear(c, c.to(c.dtype))
        t4.zero_()
        return {"p": t4}

    out = f(a, b, c)
    attempt(events, lambda: out["p"].register_hook(noting(events, "p")) and None)
    attempt(events, lambda: torch.autograd.grad(
        torch.autograd.grad(loss_of(out, "p"), c, create_graph=True)[0].float().square().sum(), (a, b, c,), allow_unused=True))
    return events


def test_seed_5001_program_1959():
    check(seed_5001_program_1959_step, leaf(3), leaf(3, 3), leaf(3, 1, dtype=torch.float16), allow_fallback=True)


def seed_5002_program_839_step(compile, b, c):
    events = []

    @compile()
    def f(b, c):
        t8 = c.movedim(0, -1)
        t8.detach().mul_(1)
        return {"p": t8, "r": b}

    out = f(b, c)
    attempt(events, lambda: loss_of(out, "p", "r").backward())
    return events


def test_seed_5002_program_839():
    check(seed_5002_program_839_step, leaf(1, 2), leaf(1, 2, dtype=torch.float16), allow_fallback=True)


def seed_5002_program_1850_step(compile, a, b):
    events = []

    @compile()
    def f(a, b):
        t3 = torch.einsum('...ij,...kj->...ik', b, b)
        t4 = a - a
        t6 = t3.contiguous()
        return {"p": t3, "q": t4, "r": t6}

    out = f(a, b)
    attempt(events, lambda: a.register_hook(noting(events, "a")) and None)
    attempt(events, lambda: out["r"].register_hook(noting(events, "r")) and None)
    attempt(events, lambda: loss_of(out, "p", "q", "r").backward())
    return events


def test_seed_5002_program_1850():
    check(seed_5002_program_1850_step, leaf(), leaf(3, 1, dtype=torch.float64), allow_fallback=True)


def seed_5003_program_971_step(compile, d):
    events = []

    @compile()
    def f(d):
        t4 = d.transpose(0, -1)
        t4.detach().mul_(1)
        return {"p": t4}

    out = f(d)
    attempt(events, lambda: loss_of(out, "p").backward(retain_graph=True))
    return events


def test_seed_5003_program_971():
    check(seed_5003_program_971_step, leaf(2, 1, dtype=torch.float16), allow_fallback=True)


def seed_5003_program_1367_step(compile, a, b):
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


def test_seed_5003_program_1367():
    check(seed_5003_program_1367_step, leaf(3, 4), constant(3, 4, dtype=torch.float64), allow_fallback=True)


def seed_5009_program_1_step(compile, b, c, d):
    events = []

    @compile()
    def f(b, c, d):
        t4 = c.transpose(0, -1)
        t7 = torch.log1p(t4.abs())
        t8 = t4.unsqueeze(0)
        t10 = t7 @ t4
        return {"p": t8, "q": t10}

    out = f(b, c, d)
    attempt(events, lambda: torch.autograd.grad(
        torch.autograd.grad(loss_of(out, "p", "q"), c, create_graph=True)[0].float().square().sum(),
        (b, c, d,), allow_unused=True))
    return events


def test_seed_5009_program_1():
    check(seed_5009_program_1_step, leaf(3), leaf(3, 3, dtype=torch.bfloat16), leaf(4, 3), allow_fallback=True)


def seed_5003_program_984_step(compile, a):
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


def test_seed_5003_program_984():
    check(seed_5003_program_984_step, leaf(40, 40))


def seed_10004_program_1680_step(compile, a):
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


def test_seed_10004_program_1680():
    """What a view sends to its base comes between what the uses before it and those after it send."""
    check(seed_10004_program_1680_step, leaf(3, 3), allow_fallback=True)


def seed_10008_program_1500_step(compile, a, b):
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


def test_seed_10008_program_1500():
    """Gradients that come in for a saved value alone do not reach what eager's nodes before it do not lead to."""
    check(seed_10008_program_1500_step, leaf(1, 1), leaf(1, 1), allow_fallback=True)
