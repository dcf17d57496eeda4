"""Backend "inductor": eager's gradients up to the last bits; Nones, strides, mutation, aliasing and draws exactly."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradc
from gradc.backends import inductor
from gradc.bits import same_bits
from gradc.journal import counters
from tests.ir.build import recorded


def observe(compiled, model, inputs):
    """Everything that can be seen after a step from a fixed seed."""
    torch.manual_seed(0)
    inputs = [value.detach().clone().requires_grad_(value.requires_grad) for value in inputs]
    outputs = compiled(*inputs)
    outputs[0].sum().backward()
    holders = [*inputs, *model.parameters()]
    values = [*outputs, *inputs, *model.buffers()]
    return [*values, *(value.grad for value in holders), torch.get_rng_state()]


def assert_alike(model, *inputs, tolerance=1e-5):
    """One step of ``model`` (which returns a tuple), eager and compiled: alike, and not by running eagerly."""
    other = copy.deepcopy(model)
    before = counters["fallbacks"].total() + counters["executor"]["programs_interpreted"]
    compiled = gradc.compile(other, backend="inductor")
    for eager, ours in zip(observe(model, model, inputs), observe(compiled, other, inputs), strict=True):
        assert (eager is None) == (ours is None)
        if eager is not None:
            assert (eager.dtype, eager.stride()) == (ours.dtype, ours.stride())
            torch.testing.assert_close(ours, eager, rtol=tolerance, atol=tolerance)
    assert [b._version for b in model.buffers()] == [b._version for b in other.buffers()]
    assert counters["fallbacks"].total() + counters["executor"]["programs_interpreted"] == before


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x):
        features = F.dropout(F.relu(self.norm(self.conv(x))).mean((2, 3)), 0.3)
        return self.head(features).sin(), features


def test_batch_norm_and_dropout():
    assert_alike(ConvNet(), torch.randn(4, 3, 8, 8).requires_grad_())


class Heads(nn.Module):
    """Two outputs; the loss uses the first, so that ``other`` and ``y`` get None."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.other = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x, y):
        features = self.body(x).tanh()
        return self.head(features), self.other(features) * y


def test_unused_outputs_give_none():
    assert_alike(Heads(), torch.randn(3, 4).t().contiguous().t().requires_grad_(), torch.randn(3, 2).requires_grad_())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            return self.out(mixed).float(), q.float()


def test_attention_under_bf16():
    assert_alike(Attention(), torch.randn(2, 6, 16).requires_grad_(), tolerance=3e-2)


class Mutates(nn.Module):
    def forward(self, x, counts):
        counts[0].add_(1)
        return x * counts[0], x.t()


def test_mutated_input_and_view_outputs():
    assert_alike(Mutates(), torch.randn(3, 4).requires_grad_(), torch.zeros(2, 4))


def test_each_layout_is_compiled_for_itself():
    run = inductor.lower(recorded(lambda x: x.sin() * 2, torch.ones(3)))
    for x in (torch.randn(3), torch.randn(5), torch.randn(2, 3).t()):
        (result,) = run([x])
        torch.testing.assert_close(result, x.sin() * 2)
        assert result.stride() == (x * 2).stride()


def test_mutated_input_that_overlaps_another_is_interpreted():
    run = inductor.lower(recorded(lambda x, y: x.add_(1) * y, torch.ones(3), torch.ones(3)))
    base = torch.zeros(3)
    before = counters["executor"]["programs_interpreted"]
    (result,) = run([base, base.view(3)])
    assert result.tolist() == [1, 1, 1]
    assert counters["executor"]["programs_interpreted"] == before + 1


def test_what_inductor_cannot_compile_is_interpreted_and_counted(monkeypatch):
    def broken(*_):
        raise AssertionError("no\nway")

    monkeypatch.setattr(inductor, "compile_fx_inner", broken)
    run = inductor.lower(recorded(torch.sin, torch.ones(3)))
    before = counters["fallbacks"]["program that Inductor cannot compile"]
    for _ in range(2):
        (result,) = run([torch.ones(3)])
    assert same_bits(result, torch.ones(3).sin())
    assert counters["fallbacks"]["program that Inductor cannot compile"] == before + 1


@pytest.mark.parametrize("ambient", [torch.bfloat16, None])
def test_autocast_around_backward_is_obeyed(ambient):
    weight = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(4, 8)

    def gradient(function):
        loss = function(x, weight)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=ambient is not None):
            return torch.autograd.grad(loss, weight)[0]

    def function(x, weight):
        return (x @ weight).sin().sum()

    torch.testing.assert_close(
        gradient(gradc.compile(function, backend="inductor")), gradient(function), rtol=1e-2 if ambient else 1e-5, atol=1e-5
    )


def test_code_that_was_written_for_other_registers_is_not_found_again(tmp_path):
    """As in a folder that machines share: compiled for wider registers, it would add up numbers that nobody wrote."""
    program = """
import torch, gradc
torch.manual_seed(0)
x = torch.randn(20, requires_grad=True)
ours = gradc.compile(lambda x: x.cos().sum(), backend="inductor")(x)
torch.testing.assert_close(ours, x.cos().sum())
"""
    for capability in ("avx2", "avx512"):
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "ATEN_CPU_CAPABILITY": capability}
        subprocess.run([sys.executable, "-c", program], env=environment, check=True)
