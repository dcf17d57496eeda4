"""A weight used before and behind a value that leaves the region, as a decoder's embedding is, whose cache is returned."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradc
from gradc.bits import same_bits

IDS = torch.arange(12).reshape(2, 6)


def heads(x: Tensor) -> Tensor:
    return x.view(2, 6, 2, 4).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(2, 6, 8)


def mixed(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return joined(x + y * z)


attended = F.scaled_dot_product_attention
torch.manual_seed(0)
LSTM, GRU = nn.LSTM(8, 8, batch_first=True), nn.GRU(8, 8, batch_first=True)
OPS: dict[str, Callable[..., Tensor]] = {
    "attention": lambda *x: joined(attended(*x)),
    "causal attention": lambda *x: joined(attended(*x, is_causal=True)),
    "masked attention": lambda *x: joined(attended(*x, attn_mask=torch.ones(6, 6).tril().bool())),
    "layer norm": lambda *x: F.layer_norm(mixed(*x), (8,)),
    "group norm": lambda *x: F.group_norm(mixed(*x), 2),
    "batch norm": lambda *x: F.batch_norm(mixed(*x), torch.zeros(6), torch.ones(6), training=True),
    "convolution": lambda *x: F.conv1d(mixed(*x), torch.ones(6, 6, 1)),
    "pooling": lambda *x: F.max_pool1d(mixed(*x), 1),
    "LSTM": lambda *x: LSTM(mixed(*x))[0],
    "GRU": lambda *x: GRU(mixed(*x))[0],
    "distances": lambda x, y, z: torch.cdist(joined(y), joined(z))[..., :1] + joined(x),
    "products": lambda *x: mixed(*x).cumprod(-1),
    "softmax": lambda *x: mixed(*x).log_softmax(-1),
}


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("op", OPS)
def test_a_weight_behind_an_output(op, is_held):
    embedding, first, second = (torch.randn(shape, requires_grad=True) for shape in ((12, 8), (8, 8), (8, 8)))

    def step(ids):
        hidden = F.embedding(ids, embedding)
        query, *made = (heads(hidden @ weight) for weight in (first, first, second))
        cached = [torch.cat([torch.zeros(2, 2, 0, 4), each], -2) for each in made]
        hidden = hidden + OPS[op](query, *cached) @ second
        kept = [each[:, :, -7:] for each in cached]
        logits = hidden @ embedding.T
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten()), logits, *kept

    gradc.reset()
    found = []
    for run in (step, gradc.compile(step)):
        results = run(IDS)
        loss, results = results[0], results if is_held else None
        loss.backward()
        found.append([loss.detach(), *(each.grad for each in (embedding, first, second))])
        embedding.grad = first.grad = second.grad = None
    assert same_bits(*found)
    assert not gradc.counters["fallbacks"]
