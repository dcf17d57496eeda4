"""Leaves that nothing watches get their gradients from the segment itself: what anybody can see is as in eager."""

import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc.bits import same_bits


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())


def pair() -> list[tuple[nn.Module, nn.Module]]:
    """[(model, what to call)]: eager and compiled."""
    eager, compiled = model(), model()
    return [(eager, eager), (compiled, gradc.compile(compiled))]


def names_behind(node: torch.autograd.graph.Node) -> list[str | None]:
    return [behind and behind.name() for behind, _ in node.next_functions]


def leaves_in_pass(watch: bool) -> list[str | None]:
    """The edges of the segment as a hook sees them while the backward pass runs, after the segment has run."""
    net, run = pair()[1]
    if watch:
        net[0].weight.register_hook(lambda grad: None)
    x = torch.ones(3, 4, requires_grad=True) * 2
    seen: list[str | None] = []
    out = run(x)
    x.register_hook(lambda grad: seen.extend(names_behind(out.grad_fn)))
    out.sum().backward()
    return seen


def test_unwatched_leaves_do_not_go_through_the_engine() -> None:
    assert leaves_in_pass(watch=False).count(None) == 4
    assert None not in leaves_in_pass(watch=True)


def test_edges_are_back_when_the_pass_is_over() -> None:
    _, run = pair()[1]
    out = run(torch.ones(3, 4))
    before = out.grad_fn.next_functions
    out.sum().backward()
    assert out.grad_fn.next_functions == before and all(node is not None for node, _ in before)


def test_edges_are_back_after_an_error() -> None:
    def fail(grad: Tensor) -> None:
        raise ValueError("from a hook")

    grads = []
    for net, run in pair():
        x = torch.ones(3, 4, requires_grad=True) * 2
        x.register_hook(fail)
        out = run(x)
        with pytest.raises(ValueError, match="from a hook"):
            out.sum().backward()
        assert None not in names_behind(out.grad_fn)
        grads.append([parameter.grad for parameter in net.parameters()])
    assert same_bits(*grads)


def test_existing_gradients_are_added_to_in_place() -> None:
    grads = []
    for net, run in pair():
        run(torch.ones(3, 4)).sum().backward()
        first = [parameter.grad for parameter in net.parameters()]
        run(torch.full((3, 4), 0.3)).sum().backward()
        assert all(parameter.grad is grad for parameter, grad in zip(net.parameters(), first, strict=True))
        grads.append(first)
    assert same_bits(*grads)


def test_a_leaf_used_outside_as_well_gets_one_sum() -> None:
    grads = []
    for net, run in pair():
        weight = net[2].weight
        (run(torch.ones(3, 4)).sum() + (weight * 0.1).sum() + (weight * 0.3).sum()).backward()
        grads.append([parameter.grad for parameter in net.parameters()])
    assert same_bits(*grads)


def test_hooks_registered_after_the_forward_see_every_gradient() -> None:
    seen = []
    for net, run in pair():
        out = run(torch.ones(3, 4))
        order: list[tuple[int, Tensor]] = []
        for number, parameter in enumerate(net.parameters()):
            parameter.register_post_accumulate_grad_hook(lambda p, number=number: order.append((number, p.grad.clone())))
        out.sum().backward()
        seen.append(dict(order))
    assert sorted(seen[0]) == sorted(seen[1]) and all(same_bits(seen[0][n], seen[1][n]) for n in seen[0])


def test_gradients_asked_for_by_name_stay_with_the_engine() -> None:
    for net, run in pair():
        out = run(torch.ones(3, 4)).sum()
        out.backward(inputs=[net[0].weight])
        assert [parameter.grad is not None for parameter in net.parameters()] == [True, False, False, False]


def test_a_pass_inside_the_pass_finds_all_edges() -> None:
    """What leads to ``b`` saved nothing, so eager lets a hook go there again while the pass is under way."""

    def compute(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        joined = x * a + (b + c)
        return joined.tanh(), joined

    grads = []
    for run in (compute, gradc.compile(compute)):
        a, b, c = leaves = [torch.full((3,), value, requires_grad=True) for value in (0.5, 2.0, 3.0)]
        x = torch.ones(3, requires_grad=True) * 2
        outs = run(x, a, b, c)
        x.register_hook(lambda grad, out=outs[1], b=b: torch.autograd.backward(out, torch.full((3,), 0.1), inputs=[b]))
        torch.autograd.backward(outs, [torch.ones(3)] * 2)
        grads.append([leaf.grad for leaf in leaves])
    assert same_bits(*grads)
    assert not same_bits(grads[1][1], grads[1][2])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_gradients_of_another_dtype_are_cast(dtype: torch.dtype) -> None:
    grads = []
    for compute in (lambda x, a, b: (x * a + b).abs().sum(), gradc.compile(lambda x, a, b: (x * a + b).abs().sum())):
        a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
        x = torch.full((3,), 2.0, dtype=dtype)
        compute(x, a, b).backward()
        grads.append((a.grad, b.grad))
        assert a.grad.dtype == torch.float32
    assert same_bits(*grads)
