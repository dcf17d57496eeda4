"""Convolutions by oneDNN's kept primitives (convolution.cpp): ATen's bits and strides, or ATen's own call."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from gradc import executor, native
from gradc.bits import same_bits
from tests.executor.agree import capture, check_agree
from tests.nodes.test_threads import at_once

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))

aten = torch.ops.aten
FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}


class Case(NamedTuple):
    """A convolution: sizes of images, channels, and how the kernel goes over them."""

    spatial: tuple[int, ...]
    channels: tuple[int, int] = (8, 16)
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    dilation: int = 1
    groups: int = 1
    images: int = 4
    is_channels_last: bool = False
    has_bias: bool = True
    output_padding: int | None = None  # of a transposed convolution
    dtype: torch.dtype = torch.float32

    @property
    def parameters(self) -> list:
        count = len(self.spatial)
        each = [[value] * count for value in (self.stride, self.padding, self.dilation)]
        return [*each, self.output_padding is not None, [self.output_padding or 0] * count, self.groups]

    def tensors(self) -> list[Tensor]:
        entering, leaving = self.channels
        x = torch.randn(self.images, entering, *self.spatial, dtype=self.dtype)
        channels = (leaving, entering) if self.output_padding is None else (entering, leaving)
        weight = torch.randn(channels[0], channels[1] // self.groups, *[self.kernel] * len(self.spatial), dtype=self.dtype)
        if self.is_channels_last:
            x, weight = (each.contiguous(memory_format=FORMATS[len(self.spatial)]) for each in (x, weight))
        return [x, weight, *([torch.randn(leaving, dtype=self.dtype)] if self.has_bias else [])]

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return aten.convolution(x, weight, bias, *self.parameters)

    def backward(self, mask: Sequence[bool] = (True, True, True)) -> Callable[..., list[Tensor]]:
        wanted = [mask[0], mask[1], mask[2] and self.has_bias]

        def function(grad: Tensor, x: Tensor, weight: Tensor) -> list[Tensor]:
            gradients = aten.convolution_backward(grad, x, weight, [self.channels[1]], *self.parameters, wanted)
            return [each for each, is_wanted in zip(gradients, wanted, strict=True) if is_wanted]

        return function

    def gradient(self) -> list[Tensor]:
        x, weight, *bias = self.tensors()
        return [torch.randn_like(self.forward(x, weight, *bias)), x, weight]


CASES = {
    "images": Case((12, 12)),
    "strided": Case((13, 11), stride=2),
    "three channels": Case((16, 16), channels=(3, 16), stride=2),
    "odd channels": Case((9, 9), channels=(5, 7)),
    "1 x 1": Case((8, 8), channels=(16, 32), kernel=1, padding=0),
    "dilated": Case((14, 14), dilation=2, padding=2),
    "groups": Case((10, 10), channels=(8, 12), groups=4),
    "depthwise": Case((10, 10), channels=(16, 16), groups=16),
    "no bias": Case((12, 12), has_bias=False),
    "large kernel": Case((32, 32), channels=(3, 24), kernel=7, stride=4, padding=3),
    "one image": Case((40, 40), images=1),
    "sequence": Case((50,), channels=(6, 10), kernel=5, padding=2),
    "sequence of groups": Case((40,), channels=(8, 8), groups=2),
    "volume": Case((6, 7, 8), channels=(4, 8)),
    "channels last": Case((12, 12), is_channels_last=True),
    "channels last, strided": Case((13, 13), channels=(16, 32), stride=2, is_channels_last=True),
    "channels last, groups": Case((12, 12), channels=(16, 16), groups=4, is_channels_last=True),
    "volume, channels last": Case((5, 6, 7), channels=(4, 8), is_channels_last=True),
    "transposed": Case((8, 8), channels=(16, 8), kernel=4, stride=2, output_padding=0),
    "transposed, output padded": Case((7, 9), channels=(16, 8), stride=2, output_padding=1),
    "transposed, groups": Case((8, 8), channels=(16, 8), stride=2, groups=4, output_padding=1),
    "transposed, dilated": Case((8, 8), channels=(5, 7), dilation=2, output_padding=0),
    "transposed, channels last": Case((8, 8), channels=(16, 8), kernel=4, stride=2, output_padding=0, is_channels_last=True),
    "transposed sequence": Case((20,), channels=(8, 6), kernel=5, stride=3, output_padding=2),
    "transposed volume": Case((4, 5, 6), channels=(4, 8), stride=2, output_padding=1),
    "transposed, bfloat16": Case((8, 8), channels=(16, 8), kernel=4, stride=2, output_padding=0, dtype=torch.bfloat16),
    "bfloat16": Case((12, 12), channels=(16, 32), dtype=torch.bfloat16),
    "bfloat16, channels last": Case((12, 12), channels=(16, 32), is_channels_last=True, dtype=torch.bfloat16),
    "bfloat16, sequence": Case((40,), channels=(8, 8), dtype=torch.bfloat16),
    "float64, which ATen does not leave to oneDNN": Case((8, 8), dtype=torch.float64),
}


def claims() -> set[tuple[str, tuple[int, ...], bool]]:
    proofs = native.extension.proofs()
    return {(kernel, tuple(shape), holds) for kernel, _, shape, holds in proofs if kernel.startswith("convolution")}


@pytest.mark.parametrize("name", CASES)
def test_forward(threads: int, name: str) -> None:
    case = CASES[name]
    check_agree(case.forward, case.tensors())


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, True), (True, True, False)])
@pytest.mark.parametrize("name", CASES)
def test_backward(threads: int, name: str, mask: tuple[bool, bool, bool]) -> None:
    case = CASES[name]
    check_agree(case.backward(mask), case.gradient())


def test_torchs_onednn_is_found_and_serves() -> None:
    if not native.extension.has_onednn():
        pytest.skip("torch's library shows none of oneDNN's functions")
    before = claims()
    case = Case((10, 6), channels=(4, 8), images=3)
    check_agree(case.forward, case.tensors())
    check_agree(case.backward(), case.gradient())
    new = {(kernel, holds) for kernel, _, holds in claims() - before}
    assert new == {("convolution", True), ("convolution backward", True)}


def test_a_gradient_that_is_one_number_everywhere() -> None:
    case = CASES["images"]
    grad, x, weight = case.gradient()
    check_agree(case.backward(), [torch.ones(()).expand_as(grad), x, weight])


def test_inputs_that_lie_otherwise() -> None:
    case = CASES["images"]
    x, weight, bias = case.tensors()
    check_agree(case.forward, [x.transpose(2, 3), weight, bias])
    check_agree(case.forward, [x, weight.transpose(2, 3), bias])
    grad, x, weight = case.gradient()
    check_agree(case.backward(), [grad.contiguous(memory_format=torch.channels_last), x, weight])
    check_agree(case.backward(), [grad.transpose(2, 3), x, weight])


@contextlib.contextmanager
def other_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


CHANGES = {
    "threads": other_threads,
    "deterministic": lambda: torch.backends.mkldnn.flags(deterministic=True),
    "disabled": lambda: torch.backends.mkldnn.flags(enabled=False),
    "precision": lambda: torch.backends.mkldnn.flags(fp32_precision="bf16"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_settings_that_change_after_the_plan_was_made(name: str) -> None:
    case = CASES["strided"]
    forward, backward = case.tensors(), case.gradient()
    run_forward = executor.lower(capture(case.forward, forward))
    run_backward = executor.lower(capture(case.backward(), backward))
    with CHANGES[name]():
        for _ in range(2):
            assert same_bits(run_forward(list(forward))[0], case.forward(*forward))
            for got, expected in zip(run_backward(list(backward)), case.backward()(*backward), strict=True):
                assert same_bits(got, expected)


def test_several_threads_run_one_plan() -> None:
    case = CASES["channels last"]
    inputs = [case.gradient() for _ in range(4)]
    native_run = executor.lower(capture(case.backward(), inputs[0]))

    def run(tensors: list[Tensor]) -> None:
        expected = case.backward()(*tensors)  # here: a thread may have another number of torch's threads
        for _ in range(20):
            for got, one in zip(native_run(list(tensors)), expected, strict=True):
                assert same_bits(got, one)

    at_once(*(functools.partial(run, tensors) for tensors in inputs))
