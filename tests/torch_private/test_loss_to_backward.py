"""A loss that goes straight to backward(): gradients as eager's, and its history wherever someone may look at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc import native
from tests.oracle import check, constant


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def as_number(net: Any, x: Tensor) -> Any:
    loss = net(x).square().mean()
    loss.backward()
    return loss.item()


def detached(net: Any, x: Tensor) -> Any:
    loss = net(x).square().mean()
    loss.backward()
    return loss.detach()


def nothing(net: Any, x: Tensor) -> Any:
    net(x).square().mean().backward()


def whole(net: Any, x: Tensor) -> Any:
    loss = net(x).square().mean()
    loss.backward()
    return loss


def in_a_list(net: Any, x: Tensor) -> Any:
    losses = [net(x).square().mean()]
    losses[0].backward()
    return losses


def another_name(net: Any, x: Tensor) -> Any:
    loss = same = net(x).square().mean()
    loss.backward()
    return same


def with_what_it_was_made_of(net: Any, x: Tensor) -> Any:
    y = net(x)
    loss = y.square().mean()
    loss.backward()
    return loss.detach(), y


def with_a_view_of_it(net: Any, x: Tensor) -> Any:
    loss = net(x).square().mean()
    loss.backward()
    return loss.view(1)


def kept_by_an_object(net: Any, x: Tensor) -> Any:
    loss = net(x).square().mean()
    net.last = loss
    loss.backward()
    return loss.item()


def of_one_element(net: Any, x: Tensor) -> Any:
    loss = net(x).square().mean().view(1, 1)
    loss.backward()
    return loss.detach()


def one_of_two(net: Any, x: Tensor) -> Any:
    loss, kept = net(x).square().mean(), 1
    other = loss if kept else x
    loss.backward()
    return other


def clipped(net: Any, x: Tensor) -> Any:
    loss = net(x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    return x.sum()


def clipped_and_read(net: Any, x: Tensor) -> Any:
    loss = net(x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    return loss


def scaled(net: Any, x: Tensor) -> Any:
    loss = net(x).square().mean()
    (loss / 2).backward()
    return loss.item()


def of_logged_parts(net: Any, x: Tensor) -> Any:
    y = net(x)
    error, size = y.square().mean(), y.abs().mean()
    loss = error + 0.1 * size
    loss.backward()
    return error.item(), size.detach(), loss.item()


def of_parts_that_one_function_logs(net: Any, x: Tensor) -> Any:
    y = net(x)
    parts = {"error": y.square().mean(), "size": y.abs().mean()}
    loss = parts["error"] + parts["size"]
    loss.backward()
    return {name: part.item() for name, part in parts.items()}


def of_a_returned_part(net: Any, x: Tensor) -> Any:
    y = net(x)
    error, size = y.square().mean(), y.abs().mean()
    (error + size).backward()
    return error.item(), size


def of_a_part_of_two_names(net: Any, x: Tensor) -> Any:
    error = same = net(x).square().mean()
    (error / 2).backward()
    return error.item(), same.requires_grad


def of_a_part_that_is_asked(net: Any, x: Tensor) -> Any:
    error = net(x).square().mean()
    (error / 2).backward()
    return error.item(), error.requires_grad, error.grad_fn is not None


def of_a_part_in_a_list(net: Any, x: Tensor) -> Any:
    error, kept = net(x).square().mean(), []
    kept.append(error)
    (error / 2).backward()
    return error.item(), kept


def of_a_part_that_an_object_has(net: Any, x: Tensor) -> Any:
    error = net(x).square().mean()
    net.last = error
    (error / 2).backward()
    return error.item(), net.last.requires_grad


def of_a_part_in_a_closure(net: Any, x: Tensor) -> Any:
    error = net(x).square().mean()

    def ask() -> bool:
        return error.requires_grad

    (error / 2).backward()
    return error.item(), ask()


def of_a_part_among_locals(net: Any, x: Tensor) -> Any:
    error = net(x).square().mean()
    (error / 2).backward()
    return error.item(), locals()["error"].requires_grad


def of_a_part_in_a_handler(net: Any, x: Tensor) -> Any:
    error = net(x).square().mean()
    try:
        (error / 2).backward()
        raise ValueError
    except ValueError:
        return error.item(), error.requires_grad


def of_parts_in_a_loop(net: Any, x: Tensor) -> Any:
    last, seen = x.sum(), []
    for _ in range(3):
        error = net(x).square().mean() + last.detach()
        (error / 2).backward()
        seen.append(last.requires_grad)
        last = error
    return seen, last.item()


def beside_scores(net: Any, x: Tensor) -> Any:
    scores = net(x)
    loss = scores.square().mean()
    loss.backward()
    return loss.item(), (scores.argmax(1) == 0).float().mean().item(), scores.shape[0]


def beside_scores_that_are_compared(net: Any, x: Tensor) -> Any:
    scores = net(x)
    loss = scores.square().mean()
    loss.backward()
    return loss.item(), scores.max(1)[0].requires_grad


def of_a_part_without_a_history(net: Any, x: Tensor) -> Any:
    y = net(x)
    error, size = y.square().mean(), y.detach().abs().mean()
    error.backward()
    return error.item(), size.item()


STEPS: list[Callable[[Any, Tensor], Any]] = [
    scaled,
    of_logged_parts,
    of_parts_that_one_function_logs,
    of_a_returned_part,
    of_a_part_of_two_names,
    of_a_part_that_is_asked,
    of_a_part_in_a_list,
    of_a_part_that_an_object_has,
    of_a_part_in_a_closure,
    of_a_part_among_locals,
    of_a_part_in_a_handler,
    of_parts_in_a_loop,
    beside_scores,
    beside_scores_that_are_compared,
    of_a_part_without_a_history,
    as_number,
    detached,
    nothing,
    whole,
    in_a_list,
    another_name,
    with_what_it_was_made_of,
    with_a_view_of_it,
    kept_by_an_object,
    of_one_element,
    one_of_two,
    clipped,
    clipped_and_read,
]
JOINT = (as_number, detached, nothing, clipped, scaled, of_logged_parts, beside_scores, of_a_part_without_a_history)


def train(compile: Any, step: Callable[[Any, Tensor], Any], net: Any, x: Tensor, clears: bool) -> list[Any]:
    seen, run = [], compile(step)
    for _ in range(6):  # from the fourth on, as one plan
        if clears:
            net.zero_grad()
        seen.append(run(net, x))
        seen += [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    return seen


@pytest.mark.parametrize("clears", (True, False), ids=("cleared", "added up"))
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_as_eager(step: Callable[[Any, Tensor], Any], clears: bool) -> None:
    check(lambda compile, x, net: train(compile, step, net, x, clears), constant(6, 4), model, allow_fallback=True)


@pytest.mark.skipif(not native.is_built(), reason="joint calls are the extension's")
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_calls_are_joint_where_nobody_looks(step: Callable[[Any, Tensor], Any]) -> None:
    net, x, before = model(), torch.randn(6, 4), native.extension.StraightLoss.num_run()
    run = gradc.compile(step)
    for _ in range(6):
        net.zero_grad()
        run(net, x)
    num_joint = native.extension.StraightLoss.num_run() - before
    assert num_joint == (5 if step in JOINT else 0)  # the first finds no backward compiled


@pytest.mark.parametrize("hook", ("tensor", "post", "node"))
def test_a_hook_on_a_leaf(hook: str) -> None:
    def step(compile: Any, x: Tensor, net: Any) -> Any:
        run, seen = compile(as_number), []
        for number in range(9):
            net.zero_grad()
            run(net, x)
            if number == 5:
                weight = net[0].weight
                match hook:
                    case "tensor":
                        weight.register_hook(lambda grad: grad * 2)
                    case "post":
                        weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))
                    case "node":
                        node = weight.expand_as(weight).grad_fn.next_functions[0][0]
                        node.register_prehook(lambda grads: (grads[0] * 2,))
                        net.held = (node,)
            seen += [p.grad.clone() for p in net.parameters()]
        return seen

    check(step, constant(6, 4), model, allow_fallback=True)


def test_gradients_that_are_held_are_the_next_steps_no_longer() -> None:
    def step(compile: Any, x: Tensor, net: Any) -> Any:
        run, held = compile(as_number), []
        for _ in range(7):
            net.zero_grad()
            run(net, x)
            held += [p.grad for p in net.parameters()]
        return held

    check(step, constant(6, 4), model, allow_fallback=True)


def test_weights_that_are_one_object() -> None:
    def step(compile: Any, x: Tensor, net: Any) -> Any:
        run, seen = compile(as_number), []
        for number in range(12):
            if number == 5:
                net[1].weight = net[0].weight
            if number != 10:
                net.zero_grad()
            seen.append(run(net, x))
            seen += [p.grad.clone() for p in net.parameters()]
        return seen

    check(step, constant(6, 3), lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), allow_fallback=True)


def test_a_nodes_own_lock_is_not_passed_by() -> None:
    """A graph of before holds the leaf's node: the gradient goes there."""

    def step(compile: Any, x: Tensor, net: Any) -> Any:
        run, seen = compile(as_number), []
        kept = net(x).sum()
        for _ in range(7):
            seen.append(run(net, x))
        kept.backward()
        return [*seen, *(p.grad for p in net.parameters())]

    check(step, constant(6, 4), model, allow_fallback=True)


@pytest.mark.parametrize("mode", ("anomaly", "autocast", "captured", "deterministic"))
def test_in_another_state(mode: str) -> None:
    def step(compile: Any, x: Tensor, net: Any) -> Any:
        run, seen = compile(as_number), []
        for number in range(14):
            net.zero_grad()
            with context(mode if number % 7 == 5 else "none"):
                seen.append(run(net, x))
            seen += [p.grad.clone() for p in net.parameters()]
        return seen

    def context(mode: str) -> Any:
        match mode:
            case "anomaly":
                return torch.autograd.set_detect_anomaly(True)
            case "autocast":
                return torch.autocast("cpu", torch.bfloat16)
            case "captured":
                return gradc.compiled_autograd()
            case "deterministic":
                return torch.autograd.set_multithreading_enabled(False)
        return torch.autograd.set_grad_enabled(True)

    check(step, constant(6, 4), model, allow_fallback=True)


def test_backward_of_the_users() -> None:
    """``torch.Tensor.backward`` may be replaced at any time."""
    net, x, calls = model(), torch.randn(6, 4), []
    run = gradc.compile(as_number)
    original = Tensor.backward
    run(net, x), run(net, x)

    def backward(self: Tensor, *args: Any, **kwargs: Any) -> None:
        calls.append(self.requires_grad)
        original(self, *args, **kwargs)

    Tensor.backward = backward
    try:
        run(net, x), run(net, x)
    finally:
        Tensor.backward = original
    assert calls == [True, True]


def test_a_complex_loss() -> None:
    """It has no gradient that goes without saying."""
    weight = torch.ones(3, dtype=torch.complex64, requires_grad=True)

    def step(x: Tensor) -> None:
        (weight * x).sum().backward()

    compiled = gradc.compile(step)
    for _ in range(4):
        for run in (compiled, step):
            with pytest.raises(RuntimeError, match="real scalar"):
                run(torch.ones(3))
    assert weight.grad is None
