"""Values that only a segment knows of are saved as plain tensors. Nothing that eager does with saved tensors may differ."""

import gc
import weakref

import pytest
import torch

import gradc
from gradc.bits import same_bits


def chain(x, w):
    inner = (x @ w).tanh()
    return (inner * inner.exp()).sigmoid() @ w


def gates(x, w):
    """As in an LSTM cell: parts of one memory, written in place, each saved by two nodes."""
    one, other, third = (x @ w.repeat(1, 3)).unsafe_chunk(3, 1)
    one, other = one.sigmoid_(), other.tanh_()
    return (one * other + third.sin()) @ w


def rows(x, w):
    inner = (x @ w).tanh()
    return inner[0].exp() * inner[1].sin() * inner[2:].exp()


def rows_and_part(x, w):
    inner = (x @ w).tanh()
    return inner[0], inner[1].sin() * inner[2].exp()


def chain_and_part(x, w):
    inner = (x @ w).tanh()
    return inner[0], inner.sin() @ w


def inputs():
    torch.manual_seed(0)
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


def both(function, chain):
    eager = function(chain, *inputs())
    compiled = gradc.compile(chain)
    for _ in range(3):
        assert all(same_bits(a, b) for a, b in zip(function(compiled, *inputs()), eager, strict=True))


each_chain = pytest.mark.parametrize("chain", [chain, gates, rows])


@each_chain
def test_second_and_third_order(chain):
    def gradients(chain, x, w):
        first = torch.autograd.grad(chain(x, w).square().sum(), (x, w), create_graph=True)
        second = torch.autograd.grad(sum(each.square().sum() for each in first), (x, w), create_graph=True)
        third = torch.autograd.grad(sum(each.sum() for each in second), (x, w))
        return [*first, *second, *third]

    both(gradients, chain)


@each_chain
def test_a_kept_graph_runs_again_and_then_with_create_graph(chain):
    def gradients(chain, x, w):
        y = chain(x, w).sum()
        made = [torch.autograd.grad(y, (x, w), retain_graph=True) for _ in range(2)]
        higher = torch.autograd.grad(y, (x, w), create_graph=True)
        return [*made[0], *made[1], *higher, *torch.autograd.grad(sum(each.sum() for each in higher), (x, w))]

    both(gradients, chain)


@each_chain
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_freed_graph_says_so(chain, create_graph):
    x, w = inputs()
    compiled = gradc.compile(chain)
    for _ in range(3):
        y = compiled(x, w).sum()
        y.backward()
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
            torch.autograd.grad(y, x, create_graph=create_graph)


@pytest.mark.parametrize("chain", [chain_and_part, rows_and_part])
def test_a_value_of_which_a_view_goes_out_is_watched(chain):
    x, w = inputs()
    compiled = gradc.compile(chain)
    for _ in range(3):
        part, rest = compiled(x, w)
        with torch.no_grad():
            part.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            rest.sum().backward()


@each_chain
@pytest.mark.parametrize("backward", ["none", "plain", "kept", "create_graph"])
def test_nothing_holds_itself(chain, backward):
    compiled = gradc.compile(chain)
    gc.disable()
    try:
        for _ in range(3):
            x, w = inputs()
            saved = weakref.ref(w)
            y = compiled(x, w)
            if backward != "none":
                flags = {"retain_graph": backward == "kept" or None, "create_graph": backward == "create_graph"}
                torch.autograd.grad(y.sum(), (x, w), **flags)
            del x, w, y
            assert saved() is None
    finally:
        gc.enable()


@each_chain
def test_saved_tensors_hooks_see_as_many_as_in_eager(chain):
    def seen(call):
        packed = []
        pack, unpack = (lambda tensor: packed.append(tensor.shape) or tensor), (lambda tensor: tensor)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            call(*inputs()).sum().backward()
        return packed

    compiled = gradc.compile(chain)
    compiled(*inputs())
    assert seen(compiled) == seen(chain)


def test_new_gradients_are_as_eagers():
    def properties(compile):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
        run = compile(model)
        for _ in range(3):
            model.zero_grad()
            run(torch.ones(3, 4)).sum().backward()
        grads = [parameter.grad for parameter in model.parameters()]
        known = [(g.is_leaf, g.requires_grad, g.stride(), g._is_view(), g._base, torch._C._dispatch_keys(g)) for g in grads]
        run(torch.ones(3, 4)).sum().backward()
        assert [parameter.grad for parameter in model.parameters()] == grads  # added to in place
        return known, [(g.untyped_storage().nbytes(), len(g.resize_(2))) for g in grads]

    assert properties(gradc.compile) == properties(lambda model: model)
