"""Randomness, and checkpoint: eager's draws, its generator state afterwards, and its memory."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gradc.bits import same_bits
from tests.oracle import constant, leaf
from tests.semantics.registry import case
from tests.semantics.test_saved_tensors import Kept

DRAWS = "Dropout and every random op"
CHECKPOINT = "torch.utils.checkpoint"


@case(DRAWS, leaf(4, 6), leaf(6, 6))
def test_dropout(compile, x, w):
    f = compile(lambda x, w: F.dropout(torch.tanh(x @ w), 0.3))
    outputs = []
    for _ in range(3):
        outputs.append(f(x, w))
        outputs[-1].sum().backward()
    return outputs, torch.rand(3)


@case(DRAWS, leaf(6, 4))
def test_dropout_of_a_transposed_tensor(compile, x):
    y = compile(lambda x: F.dropout(x.t().exp()))(x)
    y.sum().backward()
    return y


@case(DRAWS, leaf(4, 6))
def test_every_random_op(compile, x):
    def f(x):
        p = torch.sigmoid(x)
        return [
            torch.rand_like(x) * x,
            torch.randn(4, 6) + x,
            torch.bernoulli(p),
            torch.normal(x, p),
            torch.randint(5, (3,)),
            torch.randperm(6),
            torch.multinomial(p, 2),
            torch.empty_like(x).uniform_() * x,
            torch.empty(4, 6).exponential_() + x,
            F.rrelu(x, training=True),
            F.gumbel_softmax(x),
            F.alpha_dropout(x, 0.5, True),
            F.feature_alpha_dropout(x[None], 0.5, True),
        ]

    outputs = compile(f)(x)
    sum(out.sum() for out in outputs if out.requires_grad).backward()
    return outputs


@case(DRAWS, leaf(2, 4, 6))
def test_attention_dropout(compile, x):
    y = compile(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.2))(x)
    y.sum().backward()
    return y


@case(DRAWS, leaf(4, 6))
def test_dead_random_op_still_draws(compile, x):
    def f(x):
        torch.rand(5)
        return x.sin()

    y = compile(f)(x)
    y.sum().backward()
    return y, torch.rand(2)


@case(DRAWS, leaf(4, 6), min_graphs=0)
def test_seed_inside(compile, x):
    def f(x):
        torch.manual_seed(7)
        return F.dropout(x)

    return compile(f)(x), torch.rand(2)


@case(DRAWS, leaf(4, 6), min_graphs=0)
def test_generator_argument(compile, x):
    generator = torch.Generator().manual_seed(3)
    y = compile(lambda x: x * torch.rand(4, 6, generator=generator))(x)
    y.sum().backward()
    return y, generator.get_state()


@case(DRAWS, leaf(4, 6), lambda: nn.TransformerEncoderLayer(6, 2, 12, dropout=0.2, batch_first=True))
def test_transformer_layer_in_training(compile, x, layer):
    f = compile(layer)
    for _ in range(2):
        f(x[None]).square().sum().backward()


@case(DRAWS, leaf(4, 6), lambda: nn.LSTM(6, 6, num_layers=2, dropout=0.5), min_graphs=0)
def test_lstm(compile, x, lstm):
    y, _ = compile(lambda x: lstm(x))(x)
    y.sum().backward()
    return y


def block(x, w):
    return F.dropout(torch.tanh(x @ w).exp().sin(), 0.3)


@case(CHECKPOINT, leaf(4, 6), leaf(6, 6))
def test_inside_the_region(compile, x, w):
    y = compile(lambda x, w: checkpoint(block, x, w, use_reentrant=False) * 2)(x, w)
    y.sum().backward()
    return y


@case(CHECKPOINT, leaf(4, 6), leaf(6, 6))
def test_several_inside(compile, x, w):
    def f(x, w):
        for _ in range(3):
            x = checkpoint(block, x, w, use_reentrant=False)
        return x

    y = compile(f)(x, w)
    y.sum().backward()
    return y


@case(CHECKPOINT, leaf(4, 6), leaf(6, 6))
def test_around_the_region(compile, x, w):
    y = checkpoint(compile(block), x, w, use_reentrant=False)
    y.sum().backward()
    return y


@case(CHECKPOINT, leaf(4, 6), leaf(6, 6))
def test_reentrant_around_the_region(compile, x, w):
    y = checkpoint(compile(block), x, w, use_reentrant=True)
    y.sum().backward()
    return y


@case(CHECKPOINT, leaf(4, 6), leaf(6, 6))
def test_reentrant_inside_the_region(compile, x, w):
    y = compile(lambda x, w: checkpoint(block, x, w, use_reentrant=True) * 2)(x, w)
    y.sum().backward()
    return y


def save_products():
    def policy(ctx, op, *args, **kwargs):
        is_product = op is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


@case(CHECKPOINT, leaf(4, 6), leaf(6, 6))
def test_selective_inside_the_region(compile, x, w):
    f = functools.partial(checkpoint, use_reentrant=False, context_fn=save_products)
    y = compile(lambda x, w: f(block, x, w) * 2)(x, w)
    y.sum().backward()
    return y


@case(CHECKPOINT, leaf(4, 6), leaf(6, 6), fallback="dispatch mode", min_graphs=0)
def test_selective_around_the_region(compile, x, w):
    y = checkpoint(compile(block), x, w, use_reentrant=False, context_fn=save_products)
    y.sum().backward()
    return y


@case(CHECKPOINT, leaf(4, 6), leaf(6, 6))
def test_under_autocast(compile, x, w):
    f = compile(lambda x, w: checkpoint(block, x, w, use_reentrant=False) @ w)
    with torch.autocast("cpu", torch.bfloat16):
        y = f(x, w)
    y.sum().backward()
    return y


@case(CHECKPOINT, leaf(4, 6), leaf(6, 6))
def test_memory_is_saved(compile, x, w):
    kept = Kept()
    f = compile(lambda x, w: checkpoint(block, x, w, use_reentrant=False) * 2)
    with kept.hooks:
        y = f(x, w)
    num_bytes = kept.num_bytes()
    y.sum().backward()
    return num_bytes


@case(CHECKPOINT, leaf(4, 6), leaf(6, 6))
def test_second_order_through_checkpoint(compile, x, w):
    y = compile(lambda x, w: checkpoint(lambda x, w: torch.tanh(x @ w), x, w, use_reentrant=False))(x, w)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    slope.square().sum().backward()


@case(CHECKPOINT, constant(4, 6), leaf(6, 6))
def test_two_states_of_the_generator(compile, x, w):
    """The draws of the recomputation do not move the generator."""
    y = compile(lambda x, w: checkpoint(block, x, w, use_reentrant=False))(x, w)
    before = torch.get_rng_state()
    y.sum().backward()
    return same_bits(before, torch.get_rng_state())
