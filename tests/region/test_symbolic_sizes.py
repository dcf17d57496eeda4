"""A size that changes is compiled for once more, as a symbol; every later size runs what is there."""

import pytest
import torch
import torch.nn.functional as F

import gradc
from tests.oracle import check, leaf

FUNCTIONS = {
    "attention": lambda x, w: F.scaled_dot_product_attention(x @ w, x, x, is_causal=True),
    "bilinear": lambda x, w: F.bilinear(x, x, w[None] * 2),
    "constant_pad": lambda x, w: F.pad(x @ w, (1, 1, 2, 2)).sin(),
    "cross_entropy": lambda x, w: F.cross_entropy((x @ w).flatten(0, 1), torch.zeros(x.shape[0] * 6, dtype=torch.long)),
    "layer_norm": lambda x, w: F.layer_norm(x, (6,), w[0]),
    "unfold": lambda x, w: F.unfold((x @ w)[:, None], 3).cos(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_graphs_serve_all_sizes(name):
    graphs = []

    def step(compile, w):
        f = compile(FUNCTIONS[name])
        grads = [torch.autograd.grad(f(torch.randn(n, 6, 6), w).square().sum(), w) for n in (4, 7, 12, 5)]
        graphs.append(gradc.counters["stats"]["unique_graphs"])
        return grads

    check(step, leaf(6, 6))
    assert max(graphs) == 2


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_recurrent_cells(kind, is_tied, bias, autocast):
    """With one weight for input and state the order of the calls shows in the sum of its gradients."""
    graphs = []

    def step(compile, cell):
        if is_tied:
            cell.weight_ih = cell.weight_hh

        def unrolled(x):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                state = None
                for _ in range(2):
                    state = cell(x, state)
                return state

        f = compile(unrolled)
        found = []
        for n in (4, 7, 5):
            cell.zero_grad()
            made = f(torch.randn(n, 6))
            sum(value.float().square().sum() for value in (made if isinstance(made, tuple) else (made,))).backward()
            found += [made, *(p.grad for p in cell.parameters())]
        graphs.append(gradc.counters["stats"]["unique_graphs"])
        return found

    check(step, lambda: kind(6, 6, bias=bias))
    assert max(graphs) == 2
