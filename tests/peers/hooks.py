"""Hooks on tensors, nodes, leaves and what is saved: when they run, what they see, what they may return."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import register_multi_grad_hook, save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.oracle import leaf
from tests.peers.registry import behaviour, refusal


@behaviour(leaf(3))
def hooks_run_in_the_order_of_their_making(compile: Any, x: Tensor) -> Any:
    seen: list[Any] = []

    def note(name: str, factor: float) -> Any:
        def hook(grad: Tensor) -> Tensor:
            seen.append((name, grad.clone()))
            return grad * factor

        return hook

    out = compile(lambda x: x.exp() * 2)(x)
    out.register_hook(note("first", 2))
    second = out.register_hook(note("second", 3))
    out.register_hook(note("third", 5))
    x.register_hook(note("leaf", 7))
    out.sum().backward(retain_graph=True)
    second.remove()
    out.sum().backward()
    return seen


@behaviour(leaf(3))
def what_a_hook_may_return(compile: Any, x: Tensor) -> Any:
    words = []
    for answer in (lambda g: torch.ones(2), lambda g: g.double(), lambda g: 3, lambda g: None, lambda g: g.zero_()):
        out = compile(lambda x: x.exp() * 2)(x)
        out.register_hook(answer)
        words.append(refusal(lambda: out.sum().backward()))
    return words, refusal(lambda: torch.ones(3).register_hook(lambda g: g))


@behaviour(leaf(3))
def an_error_in_a_hook_is_the_users(compile: Any, x: Tensor) -> Any:
    def hook(grad: Tensor) -> None:
        raise LookupError("in a hook")

    function = compile(lambda x: x.exp() * 2)
    out = function(x)
    out.register_hook(hook)
    first = refusal(out.sum().backward)
    function(x).sum().backward()
    return first


@behaviour(leaf(3))
def hooks_of_nodes(compile: Any, x: Tensor) -> Any:
    seen: list[Any] = []
    out = compile(lambda x: x.exp() * 2)(x)
    summed = out.sum()
    summed.grad_fn.register_prehook(lambda grads: (seen.append("pre"), tuple(g * 2 for g in grads))[1])
    summed.grad_fn.register_hook(lambda ins, outs: (seen.append("post"), tuple(g * 3 for g in ins))[1])
    out.grad_fn.register_prehook(lambda grads: seen.append([g.clone() for g in grads]))
    summed.backward()
    return seen


@behaviour(leaf(3))
def hooks_of_a_leaf(compile: Any, x: Tensor) -> Any:
    seen: list[Any] = []
    x.register_hook(lambda g: (seen.append(("tensor", g.clone())), g * 2)[1])
    handle = x.register_post_accumulate_grad_hook(lambda p: seen.append(("after", p.grad.clone())))
    function = compile(lambda x: x.exp() * 2)
    function(x).sum().backward()
    function(x).sum().backward()
    handle.remove()
    x.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    function(x).sum().backward()
    return seen, x.grad, refusal(lambda: function(x).register_post_accumulate_grad_hook(lambda p: None))


@behaviour(leaf(3), leaf(3))
def hooks_on_several(compile: Any, x: Tensor, y: Tensor) -> Any:
    seen: list[Any] = []
    function = compile(lambda x, y: (x * 2, y.exp(), x * y))
    a, b, c = function(x, y)
    register_multi_grad_hook([a, b, c], lambda grads: seen.append([g is None for g in grads]))
    register_multi_grad_hook([b, c], lambda grad: seen.append(grad.clone()), mode="any")
    (a.sum() + c.sum()).backward(retain_graph=True)
    (a.sum() + b.sum() + c.sum()).backward()
    return seen


@behaviour(leaf(3))
def a_hook_that_hooks(compile: Any, x: Tensor) -> Any:
    seen: list[Any] = []
    out = compile(lambda x: x.exp() * 2)(x)
    out.register_hook(lambda g: x.register_hook(lambda h: seen.append(h.clone())) and None)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    return seen


@behaviour(leaf(3))
def a_hook_that_differentiates(compile: Any, x: Tensor) -> Any:
    seen: list[Any] = []
    function = compile(lambda x: (x.exp() * x).sum())

    def hook(grad: Tensor) -> None:
        with torch.enable_grad():
            seen.append(torch.autograd.grad(function(x), x)[0])

    out = x * 2
    out.register_hook(hook)
    (function(out) * 2).backward()
    return seen


@behaviour(leaf(3))
def hooks_with_create_graph(compile: Any, x: Tensor) -> Any:
    out = compile(lambda x: x.exp() * x)(x)
    out.register_hook(lambda g: g * g.requires_grad + g * 2)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    first.register_hook(lambda g: g * 3)
    first.sum().backward()
    return first.detach()


@behaviour(leaf(3))
def hooks_on_what_is_asked_for(compile: Any, x: Tensor) -> Any:
    middle, out = compile(lambda x: ((middle := x * 3), middle.exp().sum()))(x)
    middle.register_hook(lambda g: g * 2)
    x.register_hook(lambda g: g * 5)
    return torch.autograd.grad(out, [middle, x])


@behaviour(leaf(3))
def what_is_saved_is_packed(compile: Any, x: Tensor) -> Any:
    seen: list[Any] = []

    def pack(t: Tensor) -> Any:
        seen.append(("pack", t.detach().clone()))
        return t.detach() * 2

    def unpack(packed: Any) -> Tensor:
        seen.append("unpack")
        return packed

    with saved_tensors_hooks(pack, unpack):
        out = compile(lambda x: (x.exp() * x).sin())(x)
    out.sum().backward()
    return seen


@behaviour(leaf(3))
def what_is_saved_is_packed_inside(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda t: t * 2, lambda t: t):
            middle = x.exp()
        with save_on_cpu():
            return middle.sin() * x

    compile(function)(x).sum().backward()


@behaviour(leaf(3))
def packing_is_forbidden(compile: Any, x: Tensor) -> Any:
    function = compile(lambda x: (x.exp() * x).sum())
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        words = refusal(lambda: saved_tensors_hooks(lambda t: t, lambda t: t).__enter__())
        function(x).backward()
    return words


@behaviour(leaf(3))
def packing_that_fails(compile: Any, x: Tensor) -> Any:
    def fail(*_: Any) -> Any:
        raise KeyError("pack")

    words = []
    for pack, unpack in ((fail, lambda t: t), (lambda t: t.detach(), fail), (lambda t: t.detach(), lambda t: 3)):
        with saved_tensors_hooks(pack, unpack):
            words.append(refusal(lambda: compile(lambda x: x.exp().sum())(x).backward()).split("\n")[0])
    return words


def _checkpointed(compile: Any, x: Tensor, **options: Any) -> Any:
    def inner(x: Tensor) -> Tensor:
        return torch.dropout(x.sin() * x, 0.5, True).exp()

    def function(x: Tensor) -> Tensor:
        return checkpoint(inner, checkpoint(inner, x * 2, **options), **options) * x

    out = compile(function)(x)
    out.sum().backward()
    return out


@behaviour(leaf(8))
def checkpoints(compile: Any, x: Tensor) -> Any:
    return _checkpointed(compile, x, use_reentrant=False)


@behaviour(leaf(8))
def checkpoints_that_reenter(compile: Any, x: Tensor) -> Any:
    return _checkpointed(compile, x, use_reentrant=True)


@behaviour(leaf(8))
def a_checkpoint_that_recomputes_other_tensors(compile: Any, x: Tensor) -> Any:
    calls: list[int] = []

    def inner(x: Tensor) -> Tensor:
        calls.append(1)
        return x.sin() * x if len(calls) == 1 else x.sin()

    out = compile(lambda x: checkpoint(inner, x, use_reentrant=False))(x)
    return refusal(lambda: out.sum().backward()).split("\n")[0]


@behaviour(leaf(8))
def a_checkpoint_is_differentiated_twice(compile: Any, x: Tensor) -> Any:
    out = compile(lambda x: checkpoint(lambda x: (x.sin() * x).exp(), x * 2, use_reentrant=False))(x)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    first.sum().backward()
    return first.detach()
