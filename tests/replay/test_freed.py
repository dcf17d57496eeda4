"""What a captured backward pass holds while it runs, and lets go of."""

import gc
import weakref

import pytest
import torch
from torch import nn

import gradc
from gradc.bits import same_bits


@pytest.fixture(autouse=True)
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def recurrent(model):
    def run(x):
        h = c = torch.zeros(2, 8)
        for _ in range(6):
            h, c = model(x, (h, c))
        return h.sum()

    return run


def test_the_graph_is_gone_after_a_capture_and_after_a_replay():
    w = torch.randn(8, 8, requires_grad=True)
    for _ in range(3):
        activation = (torch.randn(8, 8) @ w).tanh()
        seen = weakref.ref(activation)
        with gradc.compiled_autograd.enable():
            activation.square().sum().backward()
        del activation
        assert seen() is None


def test_gradients_of_shared_weights_are_added_up_as_without_capture():
    """The segment adds them up itself, so a walk must not count as somebody else who holds the leaf's node."""
    model, x = nn.LSTMCell(8, 8), torch.randn(2, 8)
    recurrent(model)(x).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    before = gradc.counters["aot"]["backward_compiles"], gradc.counters["compiled_autograd"]["finished live"]
    run = gradc.compile(recurrent(model))
    for is_captured in (True, True, False, True):
        model.zero_grad()
        with gradc.compiled_autograd.enable() if is_captured else gradc.compiled_autograd.disable():
            run(x).backward()
        assert all(map(same_bits, (parameter.grad for parameter in model.parameters()), expected))
    after = gradc.counters["aot"]["backward_compiles"], gradc.counters["compiled_autograd"]["finished live"]
    assert after == (before[0] + 1, before[1])
