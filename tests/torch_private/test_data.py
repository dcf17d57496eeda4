"""``x.data`` of tensors from outside: read when the graph begins, as a tensor with a version of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from tests.oracle import check, constant, leaf

Tensor = torch.Tensor
Program = Callable[[Any, Tensor, Tensor], Any]


def of_parameters(compile: Any, online: nn.Module, target: nn.Module, x: Tensor) -> Any:
    """A target that follows, and plain SGD, as scripts had them before ``no_grad``."""

    def step(x: Tensor) -> Tensor:
        loss = online(x).square().mean() + target(x).sum()
        loss.backward()
        for p, t in zip(online.parameters(), target.parameters()):
            t.data.copy_(0.1 * p.data + 0.9 * t.data)
        for p in online.parameters():
            p.data.add_(p.grad, alpha=-0.1)
            p.grad = None
        return loss.detach()

    run = compile(step)
    losses = [run(x) for _ in range(4)]
    return losses, [p._version for p in (*online.parameters(), *target.parameters())]


def test_targets_and_sgd() -> None:
    check(of_parameters, lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 4), constant(2, 4))
    torch._dynamo.reset()
    gradc.counters.clear()
    of_parameters(gradc.compile, nn.Linear(4, 4), nn.Linear(4, 4), torch.ones(2, 4))
    assert not gradc.counters["uncompiled"]
    assert gradc.counters["stats"]["unique_graphs"] == 2  # forward with backward, and what is behind


def calls(run: Callable[[Tensor], Any], p: Tensor, x: Tensor) -> list[Any]:
    seen = []
    for _ in range(3):
        result = run(x)
        losses = [value.sum() for value in torch.utils._pytree.tree_leaves(result) if getattr(value, "requires_grad", False)]
        try:
            torch.autograd.backward(losses)
        except RuntimeError as error:
            seen.append(type(error).__name__)
        seen += [result, p._version]
    return seen


def written_between_two_reads(compile: Any, p: Tensor, x: Tensor) -> Any:
    def function(x: Tensor) -> Tensor:
        y = (x * p).sin()
        p.data.mul_(2)
        return (y * p).sum()

    return calls(compile(function), p, x)


def saved_and_then_written(compile: Any, p: Tensor, x: Tensor) -> Any:
    def function(x: Tensor) -> Tensor:
        saved = p.data
        y = x.sin() * saved
        p.data.mul_(2)
        return y.sum()

    return calls(compile(function), p, x)


def written_and_saved_as_one(compile: Any, p: Tensor, x: Tensor) -> Any:
    def function(x: Tensor) -> Tensor:
        saved = p.data
        y = x.sin() * saved
        saved.mul_(2)
        return y.sum()

    return calls(compile(function), p, x)


def written_before_backward(compile: Any, p: Tensor, x: Tensor) -> Any:
    """Eager does not see it: neither may the compiled call be seen."""
    run = compile(lambda x: p.data.mul_(x.detach().sum()).sum())
    loss = (p * p.sin() * x).sum()
    run(x)
    loss.backward()
    return run(x), p._version


def returned(compile: Any, p: Tensor, x: Tensor) -> Any:
    run, seen = compile(lambda x: (p.data, p.data * 2, x * 2)), []
    for _ in range(3):
        data, twice, _ = run(x)
        data.add_(1)
        seen += [data.clone(), twice, data is p, data.data_ptr() == p.data_ptr()]
        seen += [data._version, p._version, data.requires_grad]
    return seen


def of_what_is_made_inside(compile: Any, p: Tensor, x: Tensor) -> Any:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        y.data.mul_(2)
        return y.cos()

    return calls(compile(function), p, x)


def beside_no_grad(compile: Any, p: Tensor, x: Tensor) -> Any:
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            p.add_(1)
        p.data.mul_(2)
        with torch.no_grad():
            p.sub_(0.5)
        return p.data.sum() * x

    return calls(compile(function), p, x)


def of_gradients(compile: Any, p: Tensor, x: Tensor) -> Any:
    def function(x: Tensor) -> None:
        (p * x).sum().backward()
        p.grad.data.clamp_(-0.5, 0.5)
        p.data.sub_(0.1 * p.grad.data)
        p.grad.data.zero_()

    return calls(compile(function), p, x), p.grad._version


def set_and_read(compile: Any, p: Tensor, x: Tensor) -> Any:
    def function(x: Tensor) -> Tensor:
        y = x * p
        p.data = p.data * 2
        p.data -= 0.1 * y.data
        return y * p.data

    return calls(compile(function), p, x)


def of_an_argument_with_a_history(compile: Any, p: Tensor, x: Tensor) -> Any:
    run = compile(lambda y: (y.data * 2, y.sin() * y.data))
    return [run(x * 2), run((x * p).cos()), run(x), run(x.detach())]


def of_another_tensor_in_its_place(compile: Any, p: Tensor, x: Tensor) -> Any:
    class Holder:
        weight = p

    holder, seen = Holder(), []
    run = compile(lambda x: (holder.weight.data.mul_(2).clone(), x * holder.weight.data))
    for other in (p, x, p[:2], p.detach().double(), p):
        holder.weight = other
        try:
            seen += [run(x), other._version]
        except RuntimeError as error:
            seen.append(type(error).__name__)
    return seen


PROGRAMS: list[Program] = [
    written_between_two_reads,
    saved_and_then_written,
    written_and_saved_as_one,
    written_before_backward,
    returned,
    of_what_is_made_inside,
    beside_no_grad,
    of_gradients,
    set_and_read,
    of_an_argument_with_a_history,
    of_another_tensor_in_its_place,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program: Program) -> None:
    check(program, leaf(3), leaf(3), allow_fallback=True)


def test_many_at_once() -> None:
    """Each is a new object, and one that is gone leaves its address to the next."""
    weights = [torch.ones(3, requires_grad=True) for _ in range(20)]

    def decay() -> Tensor:
        for weight in weights:
            weight.data.mul_(0.5)
        return sum(weight.data.sum() * weight.data for weight in weights)

    torch._dynamo.reset()
    gradc.counters.clear()
    run = gradc.compile(decay)
    results = [run() for _ in range(3)]
    assert [result[0].item() for result in results] == [20 * 3 * 0.25**n for n in (1, 2, 3)]
    assert not gradc.counters["fallbacks"] and gradc.counters["stats"]["unique_graphs"] == 1
