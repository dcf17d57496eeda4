"""Settings of torch's that say which ops a call is made of, or how products round, and change between calls."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.oracle import check


def attend(q, k, v):
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def heads():
    return torch.randn(1, 2, 8, 16, requires_grad=True)


def test_another_kernel_of_attention_at_each_call():
    """The flags are read in C++: Dynamo guards none of them, and the first call's kernel served all."""

    def step(compile, *leaves):
        run = compile(attend)
        for kernel in (None, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH, None):
            with contextlib.nullcontext() if kernel is None else sdpa_kernel(kernel):
                run(*leaves).square().sum().backward()
        torch.backends.cuda.enable_flash_sdp(False)
        try:
            return run(*leaves)
        finally:
            torch.backends.cuda.enable_flash_sdp(True)

    check(step, heads, heads, heads)


def test_another_kernel_of_attention_in_a_checkpoint():
    def step(compile, *leaves):
        run = compile(lambda *leaves: torch.utils.checkpoint.checkpoint(attend, *leaves, use_reentrant=False))
        for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
            with sdpa_kernel(kernel):
                run(*leaves).square().sum().backward()

    check(step, heads, heads, heads, allow_fallback=True)


def test_another_kernel_of_attention_around_backward_is_nothing_to_it():
    def step(compile, *leaves):
        y = compile(attend)(*leaves).square().sum()
        with sdpa_kernel(SDPBackend.MATH):
            y.backward()

    check(step, heads, heads, heads)


@pytest.mark.parametrize("backend", ["cuda", "mkldnn"])
def test_precision_of_products_by_its_new_names(backend):
    """torch.get_float32_matmul_precision raises then, and so did each backward."""
    owner = getattr(torch.backends, backend).matmul

    def step(compile, x):
        run, before = compile(lambda x: (x @ x).sin().sum()), owner.fp32_precision
        try:
            for precision in ("tf32", "ieee"):
                owner.fp32_precision = precision
                run(x).backward()
        finally:
            owner.fp32_precision = before

    check(step, lambda: torch.randn(4, 4, requires_grad=True))
