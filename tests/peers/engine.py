"""The engine: what is asked for, what is kept, what is added to what, and what is refused."""

from __future__ import annotations

import copy
import threading
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracle import constant, leaf
from tests.peers.registry import behaviour, refusal


@behaviour(leaf(3))
def a_graph_is_used_twice(compile: Any, x: Tensor) -> Any:
    out = compile(lambda x: (x.exp() * x).sum())(x)
    out.backward(retain_graph=True)
    first = x.grad.clone()
    out.backward()
    return first, refusal(out.backward)


@behaviour(leaf(3))
def a_graph_that_saved_nothing_is_used_again(compile: Any, x: Tensor) -> Any:
    out = compile(lambda x: (x + 2).sum())(x)
    out.backward()
    return refusal(out.backward)


@behaviour(leaf(5, 5))
def a_gradient_is_added_in_place_or_anew(compile: Any, x: Tensor) -> Any:
    function, seen = compile(lambda x: x * 2), []
    for create_graph in (False, True, False):
        before = x.grad
        function(x).backward(torch.ones(5, 5), create_graph=create_graph)
        seen.append((x.grad is before, before, x.grad.requires_grad))
    return seen


@behaviour(leaf(3), leaf(3))
def what_was_not_used_is_refused_or_none(compile: Any, x: Tensor, y: Tensor) -> Any:
    function = compile(lambda x, y: ((x * 2).sum(), y))
    return (
        refusal(lambda: torch.autograd.grad(function(x, y)[0], [x, y])),
        torch.autograd.grad(function(x, y)[0], [x, y], allow_unused=True),
        torch.autograd.grad(function(x, y)[0], [x, y], materialize_grads=True),
        refusal(lambda: torch.autograd.grad(function(x, y)[0], [x, y], allow_unused=False, materialize_grads=True)),
    )


@behaviour(leaf(3), leaf(3))
def backward_only_into_some(compile: Any, x: Tensor, y: Tensor) -> Any:
    def function(x: Tensor, y: Tensor) -> Any:
        middle = x * y
        return middle, middle.exp()

    run = compile(function)
    middle, out = run(x, y)
    out.sum().backward(inputs=[x])
    seen = [x.grad.clone(), y.grad]
    middle, out = run(x, y)
    middle.retain_grad()
    out.sum().backward(inputs=[middle, y])
    return seen, middle.grad, refusal(lambda: run(x, y)[1].sum().backward(inputs=[]))


@behaviour(leaf(2, 3))
def wrong_tangents_are_refused(compile: Any, x: Tensor) -> Any:
    function = compile(lambda x: x * 2)
    return (
        refusal(function(x).backward),
        refusal(lambda: function(x).backward(torch.ones(2))),
        refusal(lambda: function(x).backward(3)),
        refusal(lambda: torch.autograd.grad(function(x), x, [torch.ones(2, 3), None])),
        refusal(lambda: function(x).backward(torch.ones(2, 3, dtype=torch.complex64))),
        refusal(lambda: torch.autograd.backward([], [])),
    )


@behaviour(constant(3))
def backward_of_what_has_no_history_is_refused(compile: Any, x: Tensor) -> Any:
    return refusal(compile(lambda x: (x * 2).sum())(x).backward)


@behaviour(leaf(2, 2), leaf(2, 2))
def a_hessian_times_a_vector(compile: Any, x: Tensor, y: Tensor) -> Any:
    compile(lambda x, y: x**2 + y * x + y**2)(x, y).backward(torch.ones(2, 2), create_graph=True)
    (2 * x.grad + y.grad).backward(torch.ones(2, 2))
    return x.grad.detach(), y.grad.detach()


@behaviour(leaf(2, 2), leaf(2, 2))
def steps_along_a_gradient_that_keeps_its_graph(compile: Any, start: Tensor, y: Tensor) -> Any:
    function, x = compile(lambda x, y: x**2 + y * x + y**2), start
    for _ in range(4):
        (grad,) = torch.autograd.grad(function(x, y), x, torch.ones(2, 2), create_graph=True)
        x = x + 0.05 * grad
    x.sum().backward()
    return x.detach()


@behaviour(leaf(3))
def many_tangents_at_once(compile: Any, x: Tensor) -> Any:
    out = compile(lambda x: x.exp() * x.sum())(x)
    return torch.autograd.grad(out, x, torch.eye(3), is_grads_batched=True)


@behaviour(leaf(3), leaf(3))
def several_roots(compile: Any, x: Tensor, y: Tensor) -> Any:
    first, second = compile(lambda x, y: (x * y, (x + y).exp()))(x, y)
    torch.autograd.backward([first, second, first], [torch.ones(3), torch.ones(3), torch.full((3,), 2.0)])


@behaviour(leaf(3))
def one_leaf_at_both_ends(compile: Any, x: Tensor) -> Any:
    return torch.autograd.grad([compile(lambda x: x * 2)(x), x], x, [torch.ones(3), torch.ones(3)])


@behaviour(leaf(4, 3))
def a_leaf_that_is_no_block_of_memory(compile: Any, x: Tensor) -> Any:
    transposed = x.detach().t().requires_grad_()
    strided = x.detach()[:, ::2].requires_grad_()
    compile(lambda a, b: a.exp().sum() + (b * 2).t().contiguous().sum())(transposed, strided).backward()
    return transposed.grad, transposed.grad.stride(), strided.grad, strided.grad.stride()


@behaviour(leaf(4, 1))
def a_broadcast_gradient_is_summed(compile: Any, x: Tensor) -> Any:
    empty = torch.rand(4, 0, requires_grad=True)
    compile(lambda x, e: x.expand(4, 3).exp().sum() + (x + e).sum())(x, empty).backward()
    return empty.grad


@behaviour(leaf(5, 3))
def sparse_gradients_are_added(compile: Any, weight: Tensor) -> Any:
    function = compile(lambda w, i: nn.functional.embedding(i, w, sparse=True).exp().sum())
    function(weight, torch.tensor([1, 1, 3])).backward()
    first = weight.grad.to_dense()
    function(weight, torch.tensor([0, 4])).backward()
    both = weight.grad.to_dense()
    compile(lambda w: w.sum())(weight).backward()
    return first, both, weight.grad.is_sparse


@behaviour(leaf(2))
def assigned_gradients(compile: Any, x: Tensor) -> Any:
    words = [
        refusal(lambda: setattr(x, "grad", torch.zeros(3))),
        refusal(lambda: setattr(x, "grad", torch.zeros(2, dtype=torch.float64))),
        refusal(lambda: setattr(x, "grad", x)),
        refusal(lambda: setattr(x, "grad", 0)),
    ]
    mine = torch.ones(2)
    x.grad = mine
    compile(lambda x: (x * 2).sum())(x).backward()
    return words, x.grad is mine, mine


@behaviour(leaf(3))
def a_long_chain(compile: Any, x: Tensor) -> Any:
    step, y = compile(lambda y: y * 0.999 + 0.001), x
    for _ in range(1500):
        y = step(y)
    y.sum().backward()


@behaviour(leaf(3))
def gradients_of_what_is_kept_on_the_way(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        middle = x * 3
        middle.retain_grad()
        return middle, (middle**2).sum()

    middle, out = compile(function)(x)
    out.backward(retain_graph=True)
    once = middle.grad.clone()
    out.backward()
    return once, middle.grad, middle.retains_grad


@behaviour(leaf(3))
def what_is_kept_and_then_written_into(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        middle = x * 3
        middle.retain_grad()
        middle.exp_()
        return middle, middle.sum()

    middle, out = compile(function)(x)
    out.backward()
    return middle.grad, middle


@behaviour(leaf(3))
def detached_tensors(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        middle = x * 3
        apart = middle.detach()
        gone = (x * 2).detach_()
        return middle + apart + gone, apart, gone

    out, apart, gone = compile(function)(x)
    out.sum().backward()
    return out, apart.requires_grad, gone.requires_grad, gone.is_leaf, refusal(lambda: x[0].detach_())


@behaviour(leaf(3))
def flags_that_may_not_change(compile: Any, x: Tensor) -> Any:
    out = compile(lambda x: x * 2)(x)
    return (
        refusal(lambda: setattr(out, "requires_grad", False)),
        refusal(lambda: out.requires_grad_(False)),
        refusal(lambda: torch.ones(3, dtype=torch.int64).requires_grad_()),
        refusal(lambda: compile(lambda i: (i * 2).requires_grad_())(torch.ones(3, dtype=torch.int64))),
    )


@behaviour(leaf(3))
def copies_of_what_has_a_history_are_refused(compile: Any, x: Tensor) -> Any:
    out = compile(lambda x: x * 2)(x)
    return refusal(lambda: copy.deepcopy(out)), copy.deepcopy(x)


@behaviour(leaf(3))
def recording_is_switched(compile: Any, x: Tensor) -> Any:
    @torch.no_grad()
    def quiet(x: Tensor) -> Tensor:
        return x * 2

    def function(x: Tensor) -> Any:
        a = quiet(x)
        with torch.no_grad():
            b = x * 3
            with torch.enable_grad():
                c = x * 4
            with torch.set_grad_enabled(False):
                d = x * 5
        return a, b, c, d, x * 6 + a

    results = compile(function)(x)
    (results[2] + results[4]).sum().backward()
    return results


@behaviour(leaf(3))
def recording_is_switched_between_the_steps_of_a_generator(compile: Any, x: Tensor) -> Any:
    @torch.no_grad()
    def steps(x: Tensor) -> Any:
        for factor in range(3):
            yield x * factor, torch.is_grad_enabled()

    return compile(lambda x: [(value, flag, torch.is_grad_enabled(), x * 2) for value, flag in steps(x)])(x)


@behaviour(constant(3))
def inference_tensors(compile: Any, x: Tensor) -> Any:
    with torch.inference_mode():
        made = compile(lambda x: x * 2)(x)
    w = torch.ones(3, requires_grad=True)
    return (
        made.is_inference(),
        refusal(lambda: compile(lambda w, made: w * made)(w, made).sum().backward()),
        refusal(lambda: compile(lambda made: made.add_(1))(made)),
        refusal(lambda: made.requires_grad_()),
        compile(lambda w, made: w + made)(w, made),
    )


@behaviour(leaf(3))
def what_is_saved_may_not_be_written_into(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        middle = x.exp()
        return middle, middle.sin().sum()

    middle, out = compile(function)(x)
    middle.add_(1)
    return refusal(out.backward)


@behaviour(leaf(3))
def what_is_saved_may_be_written_into_under_the_context_for_it(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Tensor:
        middle = x.exp()
        out = middle.sin().sum()
        middle.add_(1)
        return out

    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        compile(function)(x).backward()


@behaviour(leaf(3))
def a_leaf_may_not_be_written_into(compile: Any, x: Tensor) -> Any:
    return (
        refusal(lambda: compile(lambda x: x.add_(1))(x)),
        refusal(lambda: compile(lambda x: x[0].add_(1))(x)),
        refusal(lambda: compile(lambda x: x.detach().add_(1))(x)),
        x.detach(),
    )


@behaviour(leaf(3))
def a_leaf_written_into_through_data(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Tensor:
        out = (x * x).sum()
        x.data.mul_(2)
        return out

    compile(function)(x).backward()


@behaviour(leaf(3))
def anomaly_mode_names_the_function(compile: Any, x: Tensor) -> Any:
    with torch.autograd.detect_anomaly():
        out = compile(lambda x: ((x * 0) ** 0.5).sum())(x)
        return refusal(out.backward)


@behaviour(leaf(3))
def edges_of_the_graph(compile: Any, x: Tensor) -> Any:
    middle, out = compile(lambda x: ((middle := x * 3), middle.exp().sum()))(x)
    edge = torch.autograd.graph.get_gradient_edge(middle)
    return (
        torch.autograd.grad(out, [edge, torch.autograd.graph.get_gradient_edge(x)], retain_graph=True),
        torch.autograd.grad(edge, x, torch.ones(3)),
    )


@behaviour(leaf(3))
def a_callback_at_the_end_of_a_pass(compile: Any, x: Tensor) -> Any:
    seen = []

    def queue(grad: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append(x.grad.clone()))

    out = compile(lambda x: x.sin() * x)(x)
    out.register_hook(queue)
    out.sum().backward()
    return seen


@behaviour(leaf(3))
def passes_in_several_threads(compile: Any, x: Tensor) -> Any:
    function = compile(lambda x: (x.exp() * x).sum())
    function(x).backward()
    x.grad = None
    threads = [threading.Thread(target=lambda: function(x).backward()) for _ in range(4)]
    for thread in threads:
        thread.start()
        thread.join()


@behaviour(leaf(3, dtype=torch.complex64))
def complex_gradients(compile: Any, z: Tensor) -> Any:
    def function(z: Tensor) -> Any:
        return (z.abs() + (z * z.conj()).real).sum() + torch.view_as_real(z.exp()).sum() + z.imag.sum()

    compile(function)(z).backward()
    return refusal(lambda: compile(lambda z: z.sum())(z).backward())


@behaviour(leaf(4))
def subgradients(compile: Any, x: Tensor) -> Any:
    tied = torch.tensor([1.0, 1.0, 0.0, 0.0], requires_grad=True)

    def function(t: Tensor) -> Any:
        return (
            t.max() + t.min() + t.median() + t.norm() + (t * 0).norm() + t.clamp(0, 1).sum() + t.relu().sum() + t.sort()[0][1]
        )

    compile(function)(tied).backward()
    compile(lambda x: torch.where(x > 0, x.sqrt(), x * 0).sum() + x.abs().amax())(x).backward()
    return tied.grad


@behaviour(leaf(4, 4))
def jacobians_and_their_kin(compile: Any, x: Tensor) -> Any:
    function = compile(lambda x: (x.sin() @ x).sum(1))
    scalar = compile(lambda x: (x.sin() * x).sum())
    F = torch.autograd.functional
    return (
        F.jacobian(function, x.detach()),
        F.jacobian(function, x.detach(), vectorize=True),
        F.hessian(scalar, x.detach()[:2]),
        F.vjp(function, x.detach(), torch.ones(4)),
        F.jvp(function, x.detach(), torch.ones(4, 4)),
        F.hvp(scalar, x.detach(), torch.ones(4, 4)),
        F.vhp(scalar, x.detach(), torch.ones(4, 4)),
    )


@behaviour(leaf(4))
def dual_numbers(compile: Any, x: Tensor) -> Any:
    function = compile(lambda x: (x.sin() * x).exp())
    with torch.autograd.forward_ad.dual_level():
        out = function(torch.autograd.forward_ad.make_dual(x, torch.ones(4)))
        value, tangent = torch.autograd.forward_ad.unpack_dual(out)
        tangent.sum().backward()
    return value, tangent
