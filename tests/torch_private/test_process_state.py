"""What a compiled function sets for the whole process holds from there on, as in eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from tests.oracle import check, constant, leaf


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    with getattr(torch.backends, "__allow_nonbracketed_mutation")():  # torch's own test tools forbid what users may
        yield
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.backends.mkldnn.enabled = True


def in_float64(x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    y = x * (torch.ones(4) * 0.1) + torch.finfo(torch.get_default_dtype()).eps
    torch.set_default_dtype(torch.float32)
    return y * torch.ones(4)


def in_float64_finally(x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        return x * (torch.ones(4) * 0.1)
    finally:
        torch.set_default_dtype(torch.float32)


def in_float64_and_left_so(x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    return x * (torch.ones(4) * 0.1)


def deterministic(x: Tensor) -> Any:
    torch.use_deterministic_algorithms(True)
    filled = torch.empty(4)
    torch.use_deterministic_algorithms(False)
    return x * 2, filled.isnan(), torch.are_deterministic_algorithms_enabled()


def of_low_precision(x: Tensor) -> Tensor:
    torch.set_float32_matmul_precision("medium")
    y = x @ x.T
    torch.set_float32_matmul_precision("highest")
    return y @ y


def with_one_thread(x: Tensor) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    y, during = x.sum(), torch.get_num_threads()
    torch.set_num_threads(before)
    return y, during


def flushing(x: Tensor) -> Tensor:
    torch.set_flush_denormal(True)
    y = (x * 0 + 1e-40) * 0.5
    torch.set_flush_denormal(False)
    return y * 2


def on_meta(x: Tensor) -> Any:
    torch.set_default_device("meta")
    made = torch.ones(3)
    torch.set_default_device(None)
    return x * 2, made.device.type


FUNCTIONS = [
    in_float64, in_float64_finally, in_float64_and_left_so, deterministic, of_low_precision, with_one_thread, flushing, on_meta
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_state_that_a_function_sets(function: Any) -> None:
    def step(compile: Any, x: Tensor) -> Any:
        result = compile(function)(x)
        outputs = result if isinstance(result, tuple) else (result,)
        outputs[0].sum().backward()
        return *outputs, torch.ones(1)

    check(step, leaf(64, 4), allow_fallback=True)


def test_flag_of_a_backend_of_torchs() -> None:
    def step(compile: Any, conv: nn.Module, x: Tensor) -> Any:
        def run(x: Tensor) -> Any:
            torch.backends.mkldnn.enabled = False
            y, during = conv(x), torch._C._get_mkldnn_enabled()
            torch.backends.mkldnn.enabled = True
            return y, during

        return compile(run)(x)

    check(step, lambda: nn.Conv2d(8, 32, 5), constant(2, 8, 33, 33), allow_fallback=True)


def test_fullgraph_says_why() -> None:
    with pytest.raises(Exception, match="sets what holds for the whole process as eager does"):
        gradc.compile(in_float64, fullgraph=True)(torch.ones(4))


def test_other_compilers_set_it_in_their_graphs() -> None:
    gradc.compile(lambda x: x * 2)(torch.ones(2))
    assert torch.compile(in_float64, backend="eager", fullgraph=True)(torch.ones(4)).dtype == torch.float64
