"""Ambient state: what is in force when backward runs is what counts."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.oracle import constant, leaf
from tests.semantics.registry import case

BF16, FP16 = torch.bfloat16, torch.float16


def autocast(dtype=BF16, enabled=True):
    return torch.autocast("cpu", dtype, enabled=enabled)


def inner_off(x, w, v):
    hidden = torch.tanh(x @ w)
    with autocast(enabled=False):
        return hidden.float() @ v


@case("Autocast at backward time", leaf(4, 8), leaf(8, 8), leaf(8, 3))
def test_backward_outside_autocast(compile, x, w, v):
    f = compile(inner_off)
    with autocast():
        y = f(x, w, v)
    y.square().sum().backward()
    return y


@case("Autocast at backward time", leaf(4, 8), leaf(8, 8), leaf(8, 3))
def test_backward_inside_autocast(compile, x, w, v):
    f = compile(inner_off)
    with autocast():
        y = f(x, w, v)
        y.square().sum().backward()
    return y


@case("Autocast at backward time", leaf(4, 8), leaf(8, 8), leaf(8, 3))
def test_large_gradients_do_not_overflow_in_fp16(compile, x, w, v):
    f = compile(inner_off)
    with autocast(FP16):
        y = f(x, w, v)
    (y * 1e6).sum().backward()
    return y


@case("Autocast at backward time", leaf(4, 8), lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)))
def test_module_backward_outside_autocast(compile, x, model):
    with autocast():
        loss = F.cross_entropy(compile(model)(x), torch.tensor([0, 1, 2, 0]))
    loss.backward()
    return loss


@case("Autocast around backward only", leaf(4, 8), leaf(8, 8), leaf(8, 3))
def test_autocast_around_backward_only(compile, x, w, v):
    y = compile(inner_off)(x, w, v)
    with autocast():
        y.sum().backward()
    return y


@case("Autocast around backward only", leaf(4, 8), leaf(8, 8), leaf(8, 3))
def test_another_dtype_around_backward(compile, x, w, v):
    with autocast(BF16):
        y = compile(inner_off)(x, w, v)
    with autocast(FP16):
        y.sum().backward()
    return y


@case("Autocast around backward only", leaf(4, 8), leaf(8, 8))
def test_state_changes_from_call_to_call(compile, x, w):
    f = compile(lambda x, w: torch.tanh(x @ w) @ w)
    gradients = []
    for forward in (None, BF16, FP16):
        for backward in (None, BF16, FP16):
            with autocast(forward) if forward else contextlib.nullcontext():
                y = f(x, w)
            with autocast(backward) if backward else contextlib.nullcontext():
                gradients += torch.autograd.grad(y.float().square().sum(), (x, w))
    return gradients


@case("Autocast around backward only", leaf(4, 8), leaf(8, 8))
def test_same_graph_backward_twice_under_two_states(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w) @ w)(x, w)
    first = torch.autograd.grad(y.sum(), (x, w), retain_graph=True)
    with autocast():
        return first, torch.autograd.grad(y.sum(), (x, w))


@case("Autocast's weight-cast cache", leaf(4, 8), leaf(8, 8))
def test_weight_used_twice(compile, x, w):
    f = compile(lambda x, w: (x @ w).relu() @ w)
    with autocast():
        y = f(x, w)
    y.sum().backward()
    return y


@case("Autocast's weight-cast cache", leaf(4, 8), leaf(8, 8))
def test_weight_used_by_two_functions(compile, x, w):
    f, g = compile(lambda x, w: (x @ w).relu()), compile(lambda x, w: (x @ w).tanh())
    with autocast():
        y = g(f(x, w), w)
    y.sum().backward()
    return y


@case("Autocast's weight-cast cache", leaf(4, 8), leaf(8, 8))
def test_weight_used_outside_and_inside(compile, x, w):
    f = compile(lambda x, w: (x @ w).relu())
    with autocast():
        y = f(x @ w, w) @ w
    y.sum().backward()
    return y


@case("Autocast's weight-cast cache", leaf(4, 8), leaf(8, 8))
def test_autocast_inside_the_region(compile, x, w):
    @compile
    def f(x, w):
        with autocast():
            y = (x @ w).relu() @ w
        return y.float() @ w

    f(x, w).sum().backward()


@case("Autocast's weight-cast cache", leaf(4, 8), leaf(8, 8))
def test_cache_disabled(compile, x, w):
    f = compile(lambda x, w: (x @ w).relu() @ w)
    with torch.autocast("cpu", BF16, cache_enabled=False):
        y = f(x, w)
    y.sum().backward()


@case("Autocast's weight-cast cache", leaf(5, 2, 8), lambda: nn.GRUCell(8, 8))
def test_rnn_cell(compile, xs, cell):
    @compile
    def f(xs):
        state = xs.new_zeros(2, 8)
        for x in xs.unbind():
            state = cell(x, state)
        return state

    with autocast():
        y = f(xs)
    y.sum().backward()


@case("Autocast's weight-cast cache", leaf(4, 8), leaf(8, 8))
def test_weight_updated_between_calls_under_one_autocast(compile, x, w):
    """The cache keeps the stale cast of a weight, in eager too."""
    f = compile(lambda x, w: x @ w)
    with autocast():
        f(x, w).sum().backward()
        with torch.no_grad():
            w.mul_(2)
        return f(x, w)


@case("Grad mode, default dtype", leaf(4, 8), leaf(8, 8))
def test_no_grad_first_then_training(compile, x, w):
    f = compile(lambda x, w: torch.tanh(x @ w))
    with torch.no_grad():
        first = f(x, w)
    second = f(x, w)
    second.sum().backward()
    return first, second


@case("Grad mode, default dtype", leaf(4, 8), leaf(8, 8))
def test_no_grad_inside(compile, x, w):
    @compile
    def f(x, w):
        hidden = x @ w
        with torch.no_grad():
            scale = hidden.abs().max()
        return hidden / scale

    f(x, w).sum().backward()


@case("Grad mode, default dtype", leaf(4, 8), leaf(8, 8))
def test_enable_grad_inside_no_grad(compile, x, w):
    @compile
    def f(x, w):
        with torch.enable_grad():
            hidden = x @ w
        return hidden * 2, hidden

    with torch.no_grad():
        y, hidden = f(x, w)
    hidden.sum().backward()
    return y, hidden


@case("Grad mode, default dtype", leaf(4, 8), leaf(8, 8))
def test_backward_under_no_grad(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    with torch.no_grad():
        y.backward(torch.ones_like(y))


@case("Grad mode, default dtype", leaf(4, 8, dtype=torch.float64))
def test_default_dtype_switched_before_backward(compile, x):
    y = compile(lambda x: torch.logsumexp(x, 0) * x.std())(x)
    torch.set_default_dtype(torch.float64)
    try:
        y.sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)


@case("Grad mode, default dtype", leaf(8, 3), lambda: torch.tensor([0, 1, 1, 5]))
def test_deterministic_mode_switched_before_backward(compile, x, index):
    y = compile(lambda x, i: x[i] * x.index_select(0, i))(x, index)
    torch.use_deterministic_algorithms(True)
    try:
        y.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


@case("Grad mode, default dtype", leaf(3, 4))
def test_deterministic_mode_at_forward(compile, x):
    torch.use_deterministic_algorithms(True)
    try:
        y = compile(lambda x: F.interpolate(x[None], scale_factor=2.0, mode="linear").cumsum(-1))(x)
        y.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    return y


@case("Grad mode, default dtype", leaf(3, 4), fallback="anomaly mode")
def test_anomaly_mode_raises_at_nan(compile, x):
    y = compile(lambda x: torch.sqrt(x * 0) * 0)(x)
    with torch.autograd.detect_anomaly(check_nan=True):
        y.sum().backward()


@case("Grad mode, default dtype", leaf(3, 4), fallback="anomaly mode", compare_messages=True)
def test_anomaly_mode_around_all(compile, x):
    with torch.autograd.detect_anomaly(check_nan=True):
        compile(lambda x: torch.sqrt(x * 0) * 0)(x).sum().backward()


@case("Grad mode, default dtype", leaf(8, 8), leaf(8, 8))
def test_matmul_precision_switched_before_backward(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    torch.set_float32_matmul_precision("medium")
    try:
        y.sum().backward()
    finally:
        torch.set_float32_matmul_precision("highest")


def packing_to(kept):
    """Saved-tensor hooks that note shape and dtype of what is saved."""

    def pack(tensor):
        kept.append((tuple(tensor.shape), str(tensor.dtype)))
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


@case("saved_tensors_hooks around the call", leaf(4, 8), leaf(8, 8))
def test_same_tensors_are_packed(compile, x, w):
    kept = []
    with packing_to(kept):
        y = compile(lambda x, w: F.layer_norm(torch.tanh(x @ w).exp(), (8,)).softmax(-1))(x, w)
    y.sum().backward()
    return [str(entry) for entry in kept]


@case("saved_tensors_hooks around the call", leaf(4, 8), leaf(8, 8))
def test_hooks_that_change_values(compile, x, w):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float() + 1):
        y = compile(lambda x, w: torch.tanh(x @ w).exp() * x.sum())(x, w)
    y.square().sum().backward()


@case("saved_tensors_hooks around the call", leaf(4, 8), leaf(8, 8))
def test_hooks_only_on_the_second_call(compile, x, w):
    f = compile(lambda x, w: torch.tanh(x @ w).exp())
    f(x, w).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        y = f(x, w)
    y.sum().backward()
    f(x, w).sum().backward()


@case("saved_tensors_hooks around the call", leaf(4, 8), leaf(8, 8))
def test_save_on_cpu(compile, x, w):
    with torch.autograd.graph.save_on_cpu():
        y = compile(lambda x, w: torch.tanh(x @ w).exp())(x, w)
    y.sum().backward()


@case("saved_tensors_hooks around the call", leaf(4, 8), leaf(8, 8))
def test_hooks_disabled(compile, x, w):
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        y = compile(lambda x, w: torch.tanh(x @ w).exp())(x, w)
    y.sum().backward()


class OpLog(TorchDispatchMode):
    """Notes the name of each op."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@case("Dispatch and function modes", leaf(4, 8), leaf(8, 8), fallback="dispatch mode")
def test_dispatch_mode_during_backward(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w).exp())(x, w)
    with OpLog() as log:
        y.backward(torch.ones_like(y))
    return sorted(name for name in log.names if "detach" not in name)


@case("Dispatch and function modes", leaf(4, 8), leaf(8, 8), fallback="dispatch mode", min_graphs=0)
def test_dispatch_mode_around_all(compile, x, w):
    f = compile(lambda x, w: torch.tanh(x @ w).exp())
    with OpLog() as log:
        f(x, w).sum().backward()
    return sorted(name for name in log.names if "detach" not in name)


@case("Dispatch and function modes", leaf(4, 8), leaf(8, 8))
def test_function_mode_during_backward(compile, x, w):
    class Doubling(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.Tensor.sin else result

    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    y.register_hook(lambda grad: grad.sin())
    with Doubling():
        y.backward(torch.ones(4, 8))


@case("Inference mode first", leaf(4, 8), leaf(8, 8))
def test_inference_mode_first_then_training(compile, x, w):
    f = compile(lambda x, w: torch.tanh(x @ w))
    with torch.inference_mode():
        first = f(x, w)
    f(x, w).sum().backward()
    with torch.inference_mode():
        return first, f(x, w)


@case("Inference mode first", constant(4, 8), leaf(8, 8))
def test_inference_tensor_as_input(compile, x, w):
    with torch.inference_mode():
        data = x * 2
    return compile(lambda x, w: torch.tanh(x) * w.sum())(data, w)
