"""Ops that a user defines with ``torch.library``: what they take, write into and return, and what is registered for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from tests.oracle import constant, leaf
from tests.peers.registry import behaviour, refusal


@custom_op("gradc_peers::scaled", mutates_args=())
def scaled(x: Tensor, bias: Tensor | None = None, factor: float = 2.0) -> Tensor:
    out = x * factor
    return out if bias is None else out + bias


@scaled.register_fake
def _(x: Tensor, bias: Tensor | None = None, factor: float = 2.0) -> Tensor:
    return torch.empty_like(x)


def _keep_factor(ctx: Any, inputs: Any, output: Any) -> None:
    _, bias, ctx.factor = inputs
    ctx.has_bias = bias is not None


def _scaled_backward(ctx: Any, grad: Tensor) -> Any:
    return scaled(grad, None, ctx.factor), grad if ctx.has_bias else None, None


scaled.register_autograd(_scaled_backward, setup_context=_keep_factor)
scaled.register_autocast("cpu", torch.bfloat16)


@scaled.register_vmap
def _(info: Any, in_dims: Any, x: Tensor, bias: Tensor | None, factor: float) -> Any:
    return scaled(x, bias, factor * 3), in_dims[0]  # another factor, by which one sees that it was called


@behaviour(leaf(3, 4), leaf(3, 4))
def an_optional_tensor(compile: Any, x: Tensor, bias: Tensor) -> Any:
    outs = [compile(lambda x, bias: scaled(x.sin(), bias).cos())(x, given) for given in (bias, None)]
    grads = torch.autograd.grad(outs[0].sum(), [x, bias], create_graph=True)
    (outs[1].sum() + grads[0].square().sum()).backward()
    return [out.detach() for out in outs], x.grad, bias.grad


@behaviour(leaf(3, 4))
def a_kernel_for_autocast(compile: Any, x: Tensor) -> Any:
    run = compile(lambda x: scaled(x.sin(), None, 1.5) + x)
    with torch.autocast("cpu", torch.bfloat16):
        out = run(x)
    out.float().square().sum().backward()
    return out, run(x)


@behaviour(leaf(3, 4))
def a_rule_for_vmap(compile: Any, x: Tensor) -> Any:
    out = compile(lambda x: torch.func.vmap(lambda row: scaled(row.sin()).cos())(x))(x)
    out.square().sum().backward()
    return out


@custom_op("gradc_peers::parts", mutates_args=())
def parts(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return [part.clone() for part in x.split(list(sizes))]


@parts.register_fake
def _(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return [x.new_empty(size, *x.shape[1:]) for size in sizes]


def _parts_backward(ctx: Any, grads: list[Tensor]) -> Any:
    return torch.cat(grads), None


parts.register_autograd(_parts_backward)


@behaviour(leaf(5, 2))
def a_list_is_returned(compile: Any, x: Tensor) -> Any:
    out = compile(lambda x: [part.sin() for part in parts(x * 2, [1, 3, 1])])(x)
    (out[0].sum() + out[2].square().sum()).backward()
    return out


@custom_op("gradc_peers::sum_of", mutates_args=())
def sum_of(xs: Sequence[Tensor | None], weights: Tensor) -> tuple[Tensor, int]:
    found = [x * weight for x, weight in zip(xs, weights) if x is not None]
    return torch.stack(found).sum(0), len(found)


@behaviour(leaf(3), constant(2))
def tensors_that_may_be_missing_and_a_number_without_a_fake(compile: Any, x: Tensor, weights: Tensor) -> Any:
    out, number = compile(lambda x, weights: sum_of([x.detach().exp(), None], weights))(x, weights)
    return out, number


@custom_op("gradc_peers::count", mutates_args={"counter"})
def count(x: Tensor, counter: Tensor) -> Tensor:
    counter.add_(x.numel())
    return x.clone()


@count.register_fake
def _(x: Tensor, counter: Tensor) -> Tensor:
    return torch.empty_like(x)


@behaviour(leaf(3), constant(1))
def an_argument_is_written_into(compile: Any, x: Tensor, counter: Tensor) -> Any:
    run, versions = compile(lambda x, counter: x.sin() * count(x.detach(), counter) * counter), []
    for _ in range(2):
        run(x, counter).sum().backward()
        versions.append(counter._version)
    return versions


@custom_op("gradc_peers::fill", mutates_args={"out"})
def fill(x: Tensor, out: Tensor) -> None:
    out.copy_(x * 2)


@behaviour(leaf(3))
def nothing_is_returned(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        out = torch.zeros(3)
        nothing = fill(x.detach(), out)
        return nothing, (out * x).sum(), out

    nothing, loss, out = compile(function)(x)
    loss.backward()
    return nothing, loss, out


@behaviour(leaf(3))
def what_needs_a_gradient_is_not_written_into_without_a_formula(compile: Any, x: Tensor) -> Any:
    return refusal(lambda: compile(lambda x: fill(x, x * 2))(x))


@custom_op("gradc_peers::no_formula", mutates_args=())
def no_formula(x: Tensor) -> Tensor:
    return x.exp()


@no_formula.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@behaviour(leaf(3))
def an_op_without_a_formula_raises_in_backward(compile: Any, x: Tensor) -> Any:
    out = compile(lambda x: no_formula(x.sin()).cos())(x)
    return out.detach(), out.requires_grad, refusal(out.sum().backward)


@custom_op("gradc_peers::pick", mutates_args=())
def pick(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, x + y


@pick.register_fake
def _(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _keep_both(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, output[0])


def _pick_backward(ctx: Any, first: Tensor, second: Tensor) -> Any:
    x, y, out = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return first * y + second + out * (0.5 if needs[1] else 0.25), first * x + second if needs[1] else None


pick.register_autograd(_pick_backward, setup_context=_keep_both)


@behaviour(leaf(3), constant(3))
def what_needs_a_gradient_is_known_in_backward(compile: Any, x: Tensor, y: Tensor) -> Any:
    run = compile(lambda x, y: pick(x.sin(), y))
    outs = [run(x, given)[number] for given in (y, y.exp().requires_grad_()) for number in (0, 1)]
    sum(out.sum() for out in outs).backward()
    return outs


@custom_op("gradc_peers::times", mutates_args=())
def times(x: Tensor, number: int) -> Tensor:
    return x * number


@times.register_kernel("cpu")
def _(x: Tensor, number: int) -> Tensor:
    return x * (number + 1)  # for the CPU


times.register_fake(lambda x, number: torch.empty_like(x))
times.register_autograd(
    lambda ctx, grad: (times(grad, ctx.number), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "number", inputs[1]),
)


@behaviour(leaf(2, 3), leaf(4, 3))
def a_kernel_for_a_device_and_changing_sizes(compile: Any, x: Tensor, y: Tensor) -> Any:
    run = compile(lambda x: times(x.sin(), x.shape[0]) * x.shape[0])
    outs = [run(given) for given in (x, y, x)]
    sum(out.sum() for out in outs).backward()
    return outs


@behaviour(leaf(3))
def a_disabled_kernel(compile: Any, x: Tensor) -> Any:
    with times.set_kernel_enabled("cpu", False):
        out = compile(lambda x: times(x, 3).sin())(x)
        out.sum().backward()
    return out
