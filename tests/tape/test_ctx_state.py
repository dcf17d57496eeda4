"""Tensors that a custom op keeps on ``ctx`` by itself: they live as long as eager's would, and nobody checks them."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gradc
from benchmarks.common import peak_bytes
from tests.compilers import find
from tests.oracle import Report, leaf
from tests.oracle import check as compare_with_eager

_numbers = itertools.count()


def check(*arguments: Any, **options: Any) -> Report:
    """As the oracle's, of a step that does not raise."""
    report = compare_with_eager(*arguments, **options)
    assert report.eager.error is None
    return report


def custom_op(setup: Callable[..., Any], backward: Callable[..., Any], forward: Callable[..., Any] = torch.exp) -> Any:
    """A custom op of one tensor and an optional mask, with an autograd formula."""

    @torch.library.custom_op(f"gradc_tests::keeps_{next(_numbers)}", mutates_args=())
    def op(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return forward(x)

    op.register_fake(lambda x, mask=None: torch.empty_like(x))
    op.register_autograd(
        lambda ctx, grad: (backward(ctx, grad), None),
        setup_context=lambda ctx, inputs, output: setup(ctx, inputs, output),
    )
    return op


def keep(**values: Callable[[Any, Any], Any]) -> Callable[..., None]:
    """A setup_context that keeps ``values``, each a function of inputs and output."""

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        for name, value in values.items():
            setattr(ctx, name, value(inputs, output))

    return setup


keeps_output = custom_op(keep(y=lambda i, o: o.detach()), lambda ctx, grad: grad * ctx.y)
keeps_input = custom_op(keep(x=lambda i, o: i[0].detach()), lambda ctx, grad: grad * ctx.x.exp())
keeps_mask = custom_op(keep(mask=lambda i, o: i[1]), lambda ctx, grad: grad * ctx.mask)
keeps_what_it_made = custom_op(
    keep(held=lambda i, o: {"all": [i[0].detach().cos(), 3.0]}),
    lambda ctx, grad: grad * ctx.held["all"][0] * ctx.held["all"][1],
)


def saves_and_keeps_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(output)
    ctx.x = inputs[0].detach()


saves_and_keeps = custom_op(saves_and_keeps_setup, lambda ctx, grad: grad * ctx.saved_tensors[0] + ctx.x * 0.1)
saves_alone = custom_op(lambda ctx, i, o: ctx.save_for_backward(o), lambda ctx, grad: grad * ctx.saved_tensors[0])
OPS = [keeps_output, keeps_input, keeps_mask, keeps_what_it_made, saves_and_keeps]
COMPILERS = [find(name) for name in ("gradc", "gradc:eager", "gradc_captured")]


def around(op: Any) -> Callable[..., Any]:
    return lambda x, mask: op(x.sin() * 2, mask).tanh()


@pytest.mark.parametrize("compiler", COMPILERS, ids=lambda compiler: compiler.name)
@pytest.mark.parametrize("op", OPS)
def test_first_order(op, compiler):
    def step(compile, x, mask):
        run = compile(around(op))
        y = run(x, mask)
        y.sum().backward(retain_graph=True)
        (y * 2).sum().backward()
        run(x, mask).sum().backward()

    check(step, leaf(4, 3), leaf(4, 3, requires_grad=False), compiler=compiler)


@pytest.mark.parametrize("compiler", COMPILERS[:2], ids=lambda compiler: compiler.name)
@pytest.mark.parametrize("op", [*OPS, saves_alone])
def test_three_orders(op, compiler):
    def step(compile, x, mask):
        y = compile(around(op))(x, mask)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
        return first, second, third

    check(step, leaf(4, 3), leaf(4, 3, requires_grad=False), compiler=compiler)


@pytest.mark.parametrize("compiler", COMPILERS[:2], ids=lambda compiler: compiler.name)
@pytest.mark.parametrize("op", OPS)
def test_what_nobody_saved_is_not_freed(op, compiler):
    """Eager frees saved tensors alone: another backward goes through, but for the op that saved one."""

    def step(compile, x, mask):
        y = compile(lambda x, mask: op(x, mask).neg())(x, mask)
        y.sum().backward()
        y.sum().backward()

    report = compare_with_eager(
        step, leaf(4), leaf(4, requires_grad=False), compare_messages=True, compiler=compiler
    )
    assert (report.eager.error is None) == (op is not saves_and_keeps)


@pytest.mark.parametrize("compiler", COMPILERS[:2], ids=lambda compiler: compiler.name)
@pytest.mark.parametrize("op", [keeps_input, keeps_mask])
@pytest.mark.parametrize("change", [lambda value: value.add_(1), lambda value: setattr(value, "data", value.data * 2)])
def test_backward_reads_the_present_value_of_an_input(op, compiler, change):
    def step(compile, x, mask):
        y = compile(lambda x, mask: op(x, mask) * 2)(x, mask)
        with torch.no_grad():
            change(x)
            change(mask)
        y.sum().backward()

    check(step, leaf(4), leaf(4, requires_grad=False), compiler=compiler)


@pytest.mark.parametrize("op", OPS)
def test_what_the_region_writes_later(op):
    def function(x, mask):
        z, own = x.sin(), mask * 2
        y = op(z, own)
        with torch.no_grad():
            z.detach().mul_(3)
            own.add_(1)
        return y * 2

    def step(compile, x, mask):
        compile(function)(x, mask).sum().backward()

    check(step, leaf(4), leaf(4, requires_grad=False), allow_fallback=op in (saves_and_keeps, keeps_input))


def test_dynamic_sizes():
    def step(compile, *inputs):
        run = compile(around(keeps_what_it_made), dynamic=True)
        for x in inputs:
            (first,) = torch.autograd.grad(run(x, None).sum(), x, create_graph=True)
            first.square().sum().backward()

    check(step, *(leaf(size, 3) for size in (4, 5, 7)))


def test_hooks_on_leaves():
    def step(compile, x, w):
        seen = []
        for value in (x, w):
            value.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
        compile(lambda x, w: keeps_output(x * 2) * w)(x, w).sum().backward()
        return seen

    check(step, leaf(4), leaf(4))


def test_under_checkpoint():
    def step(compile, x):
        run = compile(lambda x: keeps_what_it_made(x.sin()).exp())
        checkpoint(run, x, use_reentrant=False).sum().backward()

    check(step, leaf(4))


def test_saved_tensors_hooks_do_not_see_it():
    def step(compile, x):
        packed = []
        run = compile(lambda x: keeps_output(x.sin()).exp())
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t.clone()), t)[1], lambda t: t):
            run(x).sum().backward()
        return packed

    check(step, leaf(4), allow_fallback=True)


def test_under_autocast_and_with_another_gradient():
    def step(compile, x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = compile(lambda x, w: keeps_output(x @ w).tanh())(x, w)
        y.backward(torch.randn(4, 4, dtype=y.dtype).t(), retain_graph=True)
        y.sum().backward()

    check(step, leaf(4, 4), leaf(4, 4))


def test_it_dies_with_the_graph():
    x = torch.randn(1 << 16, requires_grad=True)

    def steps(run):
        def step():
            for _ in range(3):
                y = run(x)
                y.sum().backward()
                x.grad = None

        step()
        return peak_bytes(step)

    function = lambda x: keeps_what_it_made(x.sin())
    assert steps(gradc.compile(function)) <= steps(function)


class Box:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def forgets(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    y, ctx.y = ctx.y, None
    return grad * y


def counts(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    ctx.state["n"] += 1
    return grad * ctx.state["n"]


REFUSED = {
    "forward value kept outside saved tensors": [
        custom_op(keep(x=lambda i, o: i[0]), lambda ctx, grad: grad * ctx.x),  # which has a history
        custom_op(keep(box=lambda i, o: Box(i[0].detach())), lambda ctx, grad: grad * ctx.box.value),
    ],
    "backward that changes its ctx": [
        custom_op(keep(y=lambda i, o: o.detach()), forgets),
        custom_op(keep(state=lambda i, o: {"n": 0}), counts),
    ],
    "backward that writes into what ctx holds": [
        custom_op(keep(y=lambda i, o: o.detach()), lambda ctx, grad: ctx.y.mul_(grad)),
    ],
}


@pytest.mark.parametrize("reason, op", [(reason, op) for reason, ops in REFUSED.items() for op in ops])
def test_what_is_refused(reason, op):
    def step(compile, x):
        y = compile(lambda x: op(x.sin()) * 2)(x)
        for _ in range(2):
            y.sum().backward(retain_graph=True)

    report = compare_with_eager(step, leaf(4), allow_fallback=True, compare_messages=True)  # one raises the second time
    assert list(report.fallbacks) == [reason]


def test_an_output_that_is_kept_is_refused():
    whole = custom_op(keep(mask=lambda i, o: i[1]), lambda ctx, grad: grad * ctx.mask)

    def function(x, mask):
        made = mask * 2
        return whole(x, made), made

    def step(compile, x, mask):
        y, made = compile(function)(x, mask)
        made.data = made.data * 2
        y.sum().backward()

    report = check(step, leaf(4), leaf(4, requires_grad=False), allow_fallback=True)
    assert list(report.fallbacks) == ["forward value kept outside saved tensors"]


def test_a_backward_that_cannot_be_traced_reads_the_real_one():
    """Ops that no Program can be made for run on the tape itself; there ctx gives out the tensors of the call."""
    op = custom_op(
        keep(y=lambda i, o: o.detach()), lambda ctx, grad: grad * ctx.y * (1 if grad.is_contiguous() else float(ctx.y.sum()))
    )

    def step(compile, x):
        y = compile(lambda x: op(x.sin()))(x)
        y.sum().backward(torch.ones(()), retain_graph=True)
        y.backward(torch.randn(3, 4).t())

    report = check(step, leaf(4, 3), allow_fallback=True)
    assert report.fallbacks
