"""nn.LSTM, nn.GRU and nn.RNN in graphs: the ATen calls that eager makes, or a counted end of the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gradc
from gradc.bits import same_bits
from tests.compilers import COMPILERS
from tests.oracle import check, leaf

KINDS: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(4, 5),
    "gru": lambda: nn.GRU(4, 5),
    "tanh": lambda: nn.RNN(4, 5),
    "relu": lambda: nn.RNN(4, 5, nonlinearity="relu"),
    "lstm, bidirectional": lambda: nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True, dropout=0.3),
    "gru, bidirectional": lambda: nn.GRU(4, 5, 2, bidirectional=True, batch_first=True, dropout=0.3),
    "tanh, bidirectional": lambda: nn.RNN(4, 5, 2, bidirectional=True, batch_first=True, dropout=0.3),
    "lstm, projected": lambda: nn.LSTM(4, 5, proj_size=3),
    "lstm, no bias": lambda: nn.LSTM(4, 5, bias=False),
}
STATES = {
    "lstm": lambda x: (x[:1, :, :1].expand(1, -1, 5) * 2, x[:1, :, 1:2].expand(1, -1, 5).exp()),
    "gru": lambda x: x[:1, :, :1].expand(1, -1, 5),
}


def stepping(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32, autocast: bool = False) -> Any:
    """Three steps of training with a module between two linear ones, and one without gradients."""

    def step(compile: Any) -> Any:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 4), make()).to(dtype)
        call, found = compile(module), []
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn(3, 4, 4, dtype=dtype, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                out, state = call(x)
            (
                out.float().pow(2).sum() + sum(s.float().sum() for s in (state if isinstance(state, tuple) else (state,)))
            ).backward()
            found.append((out, state, x.grad, [parameter.grad.clone() for parameter in module.parameters()]))
        with torch.no_grad():
            found.append(call(x))
        return found

    return step


SOME = ("lstm", "gru", "lstm, projected")
OTHER_DTYPES = [(kind, dtype) for kind in SOME for dtype in (torch.float64, torch.bfloat16)]


@pytest.mark.parametrize(("kind", "dtype"), [*((kind, torch.float32) for kind in KINDS), *OTHER_DTYPES])
def test_kinds_and_dtypes(kind, dtype):
    check(stepping(KINDS[kind], dtype))
    assert not gradc.counters["uncompiled"]


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_under_autocast(kind):
    check(stepping(KINDS[kind], autocast=True))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_captured_backward_passes(kind):
    check(stepping(KINDS[kind]), compiler=COMPILERS["gradc_captured"])


@pytest.mark.parametrize("kind", STATES)
def test_a_state_that_is_given(kind):
    def step(compile: Any, x: Tensor) -> Any:
        torch.manual_seed(0)
        module = KINDS[kind]()
        call = compile(lambda x: module(x.sin(), STATES[kind](x)))
        for _ in range(2):
            out, state = call(x)
            (out.sum() + sum(s.exp().sum() for s in state)).backward()
        return out, state, [parameter.grad for parameter in module.parameters()]

    check(step, leaf(3, 4, 4))


def test_without_a_batch():
    def step(compile: Any, x: Tensor) -> Any:
        torch.manual_seed(0)
        module = nn.GRU(4, 5)
        out, state = compile(module)(x)
        return out, state, torch.autograd.grad(out.sum(), x)

    check(step, leaf(3, 4))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_derivatives_of_derivatives(kind):
    """The one kernel of the LSTM has no second derivative; the steps of the GRU have."""

    def step(compile: Any, x: Tensor) -> Any:
        torch.manual_seed(0)
        module = KINDS[kind]()
        out, _ = compile(module)(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return torch.autograd.grad(grad.sum(), x)

    check(step, leaf(2, 3, 4), allow_fallback=True)


def test_on_cuda_they_are_left_to_cudnn():
    """Traced, cuDNN's weights were "set to a storage on different device meta"."""
    gradc.counters.clear()
    with FakeTensorMode():  # no GPU is needed to see where the graph ends
        x, state, *weights = (torch.empty(shape, device="cuda") for shape in [(2, 1, 3), (1, 1, 4), (12, 3), (12, 4)])
        recur = gradc.compile(lambda x: torch.gru(x, state, weights, False, 1, 0.0, True, False, False)[0] * 2)
        with contextlib.suppress(AssertionError, RuntimeError):  # where there is none
            recur(x)
    assert gradc.counters["uncompiled"]["gradc: recurrence on CUDA"] == 1


class Tagger(nn.Module):
    """Between two linear layers, a recurrent module over packed sequences."""

    def __init__(self, make: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.embed, self.recurrence, self.out = nn.Linear(4, 4), make(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(x).tanh(), lengths, batch_first=True, enforce_sorted=False)
        unpacked, _ = pad_packed_sequence(self.recurrence(packed)[0], batch_first=True)
        return self.out(unpacked).sin()


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_run_in_torchs_loop_counted(make):
    def step(compile: Any) -> Any:
        torch.manual_seed(0)
        module = Tagger(make)
        call, found = compile(module), []
        for lengths in ([3, 1], [2, 3], [3, 2], [1, 3]):
            call(torch.randn(2, 3, 4), torch.tensor(lengths)).sum().backward()
            found.append([parameter.grad.clone() for parameter in module.parameters()])
        return found

    assert check(step).num_graphs >= 2


@pytest.mark.parametrize(
    ("make", "length", "reason"),
    [
        (lambda: nn.GRU(4, 4), 65, "gradc: recurrence of many steps"),
        (lambda: nn.LSTM(4, 4, 2, bidirectional=True).double(), 17, "gradc: recurrence of many steps"),
        (lambda: nn.LSTM(4, 4), 65, None),
    ],
)
def test_many_steps_run_in_torchs_loop_counted(make, length, reason):
    """An LSTM of float32 is one kernel for each layer, however long."""
    module = make()
    x = torch.randn(length, 1, 4, dtype=next(module.parameters()).dtype)
    gradc.counters.clear()
    out, _ = gradc.compile(module)(x)
    assert same_bits(out, module(x)[0])
    assert list(gradc.counters["uncompiled"]) == ([] if reason is None else [reason])


def test_lengths_that_change():
    def step(compile: Any) -> Any:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 4), nn.GRU(4, 5))
        call, found = compile(module), []
        for length in (2, 3, 4, 5, 6):
            call(torch.randn(length, 2, 4))[0].sum().backward()
            found.append([parameter.grad.clone() for parameter in module.parameters()])
        return found

    assert check(step).num_graphs <= 4


def test_a_switch_of_its_kernels_is_noticed():
    """Compiled with oneDNN's kernel, it must not run where that was switched off."""

    def step(compile: Any, x: Tensor) -> Any:
        torch.manual_seed(0)
        call, found = compile(nn.LSTM(16, 16)), []
        for enabled in (True, False, True):
            with torch.backends.mkldnn.flags(enabled=enabled):
                out, _ = call(x)
                found.append((out, out.grad_fn is None, *torch.autograd.grad(out.exp().sum(), x)))
        return found

    check(step, leaf(9, 8, 16))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_lstm_without_gradients_has_eagers_bits(mode: Any) -> None:
    """oneDNN's kernel asks whether gradients are enabled, and calculates one sequence otherwise then."""

    def step(compile: Any, x: Tensor) -> Any:
        torch.manual_seed(0)
        lstm = nn.LSTM(4, 3, batch_first=True)
        with mode():
            return compile(lambda x: lstm(x)[0])(x)

    check(step, leaf(1, 3, 4), allow_fallback=True)
