"""Programs of tests.devices.registry: settings of torch's that choose kernels or how they round, and change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.compilers import Compiler
from tests.devices.registry import Device, constant, leaf, program


@contextlib.contextmanager
def switched(owner: Any, **settings: Any) -> Iterator[None]:
    """Attributes of ``owner`` as said, while inside."""
    before = {name: getattr(owner, name) for name in settings}
    for name, value in settings.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


KERNELS = ([SDPBackend.MATH], [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])


@program()
def attention_by_each_kernel(compile: Compiler, device: Device) -> Any:
    leaves = [leaf(device, 2, 2, 16, 16, dtype=torch.float16 if device.type == "cuda" else torch.float32) for _ in range(3)]
    step, found = compile(attend), []
    for _ in range(2):
        found.append(torch.autograd.grad(step(*leaves).square().sum(), leaves))
        for kernels in KERNELS:
            with sdpa_kernel(kernels):
                found.append(torch.autograd.grad(step(*leaves).square().sum(), leaves))
    return found


@program()
def attention_by_another_kernel_in_backward(compile: Compiler, device: Device) -> Any:
    """Which has no say in it: the forward's is the kernel of both."""
    leaves = [leaf(device, 2, 2, 16, 16, dtype=torch.float16 if device.type == "cuda" else torch.float32) for _ in range(3)]
    step, found = compile(attend), []
    for _ in range(2):
        y = step(*leaves).square().sum()
        with sdpa_kernel([SDPBackend.MATH]):
            found.append(torch.autograd.grad(y, leaves))
    return found


def _gradients(step: Any, leaves: list[torch.Tensor], forward: Any, backward: Any) -> Any:
    with forward:
        y = step(*leaves).float().square().sum()
    with backward:
        return torch.autograd.grad(y, leaves)


@program()
def rounding_of_products(compile: Compiler, device: Device) -> Any:
    """TF32, by its older names, in the forward, the backward, or both."""
    leaves = [leaf(device, 64, 64) for _ in range(3)]
    step = compile(lambda x, w, v: torch.tanh(x @ w) @ v)
    tf32 = lambda is_on: switched(torch.backends.cuda.matmul, allow_tf32=is_on)
    return [_gradients(step, leaves, tf32(one), tf32(other)) for one in (False, True) for other in (False, True)]


@program()
def rounding_of_products_by_new_names(compile: Compiler, device: Device) -> Any:
    """After which torch.get_float32_matmul_precision raises."""
    leaves = [leaf(device, 64, 64) for _ in range(3)]
    step = compile(lambda x, w, v: torch.tanh(x @ w) @ v)
    precision = lambda name: switched(torch.backends.cuda.matmul, fp32_precision=name)
    names = "ieee", "tf32"
    return [_gradients(step, leaves, precision(one), precision(other)) for one in names for other in names]


@program()
def sums_in_half_precision(compile: Compiler, device: Device) -> Any:
    leaves = [leaf(device, 64, 64, dtype=dtype) for dtype in (torch.bfloat16,) * 3]
    step = compile(lambda x, w, v: torch.tanh(x @ w) @ v)
    reduced = lambda is_on: switched(torch.backends.cuda.matmul, allow_bf16_reduced_precision_reduction=is_on)
    return [_gradients(step, leaves, reduced(one), reduced(other)) for one in (False, True) for other in (False, True)]


@program()
def flags_of_cudnn(compile: Compiler, device: Device) -> Any:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)).to(device)
    step, x, found = compile(net), leaf(device, 2, 3, 8, 8), []
    for settings in ({"benchmark": True}, {"allow_tf32": False}, {"enabled": False}, {}):
        with torch.backends.cudnn.flags(**{"enabled": True, "deterministic": True, **settings}):
            found.append(torch.autograd.grad(step(x).square().sum(), [x, *net.parameters()]))
        y = step(x).square().sum()
        with torch.backends.cudnn.flags(**{"enabled": True, "deterministic": True, **settings}):
            found.append(torch.autograd.grad(y, [x, *net.parameters()]))
    return net, found


@program()
def loss_scale_that_overflows(compile: Compiler, device: Device) -> Any:
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    steps, scaler = torch.optim.Adam(net.parameters(), lr=0.1), torch.amp.GradScaler(device.type, growth_interval=2)
    forward, scales = compile(net), []
    for number in range(6):
        steps.zero_grad()
        with torch.autocast(device.type, torch.float16):
            loss = forward(constant(device, 4, 6) * (1e6 if number == 3 else 1)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(steps)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(steps)
        scaler.update()
        scales.append(scaler.get_scale())
    return net, steps, scales
