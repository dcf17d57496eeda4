"""Products of bfloat16 matrices in float32 (bfloat16_product.h): oneDNN's bits, whatever the shape, layout and numbers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradc import executor, native
from gradc.bits import same_bits
from tests.executor.agree import Probe, capture, check_agree
from tests.executor.test_tiled_products import factors as float32_factors
from tests.forked import python

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))

INNER = (1, 2, 7, 48, 65, 255, 384, 600, 1030, 2049)
SHAPES = list(itertools.product((28, 29, 42, 100, 300), INNER, (17, 31, 32, 33, 130, 270)))


def factors(rows: int, inner: int, columns: int, layout: str) -> tuple[Tensor, Tensor]:
    x, y = float32_factors(rows, inner, columns, layout)
    return x.bfloat16(), y.bfloat16()


def check_products(x: Tensor, y: Tensor) -> None:
    row, whole = torch.randn(y.shape[1]).bfloat16(), torch.randn(x.shape[0], y.shape[1]).bfloat16()
    check_agree(torch.mm, [x, y])
    check_agree(torch.addmm, [row, x, y])
    check_agree(torch.addmm, [whole, x, y])


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_all_shapes(layout: str, threads: int) -> None:
    for shape in SHAPES[threads - 1 :: 7]:
        check_products(*factors(*shape, layout))


def _zeros(factor: Tensor) -> None:
    factor[torch.rand(factor.shape) < 0.4] = 0.0
    factor[torch.rand(factor.shape) < 0.3] = -0.0


def _too_small(factor: Tensor) -> None:
    factor *= torch.where(torch.rand(factor.shape) < 0.5, 1e-19, 1e-39).bfloat16()


def _too_large(factor: Tensor) -> None:
    factor *= 1e19


def _no_numbers(factor: Tensor) -> None:
    for value in (float("inf"), -float("inf"), float("nan")):
        factor[torch.rand(factor.shape) < 0.02] = value


@pytest.mark.parametrize("spoil", [_zeros, _too_small, _too_large, _no_numbers], ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
def test_numbers_that_are_seldom_met(spoil: Callable[[Tensor], None], layout: str) -> None:
    for shape in [(28, 2, 65), (64, 64, 64), (100, 7, 128), (64, 256, 32), (33, 1500, 50)]:
        x, y = factors(*shape, layout)
        spoil(x), spoil(y)
        check_products(x, y)
        check_products(-x.abs(), y.abs())


def test_gaps_between_rows_and_other_layouts() -> None:
    wide, tall = torch.randn(40, 90).bfloat16(), torch.randn(90, 70).bfloat16()
    check_products(wide[:, :64], tall[:64, :33])
    check_products(wide[::2, 5:69].repeat(2, 1), tall[7:71, 1::2])
    check_products(tall.t()[:48, :64], wide.t()[:64, 3:20])
    check_products(wide[:1].expand(30, 90), tall)


def test_large_products(threads: int) -> None:
    for shape in [(1024, 384, 1536), (300, 3000, 200), (2000, 100, 700)]:
        for layout in ("NN", "NT", "TN"):
            check_agree(torch.mm, [*factors(*shape, layout)])


def test_settings_that_change_behind_the_first_run() -> None:
    """oneDNN makes other bits with other threads, or is not asked at all."""
    x, y = factors(64, 1500, 64, "NT")
    plan = executor.lower(capture(torch.mm, [x, y]))

    def check() -> None:
        for _ in range(2):
            assert same_bits(plan([x.clone(), y.clone()])[0], x @ y)

    check()
    before = torch.get_num_threads()
    try:
        for number in (1, 2, 3, before):
            torch.set_num_threads(number)
            check()
    finally:
        torch.set_num_threads(before)
    with torch.backends.mkldnn.flags(enabled=False):
        check()
    with torch.backends.mkldnn.flags(enabled=True, deterministic=True):
        check()
    torch.set_flush_denormal(True)
    try:
        check()
    finally:
        torch.set_flush_denormal(False)
    check()


def test_asked_under_autocast_and_a_mode() -> None:
    """What oneDNN makes is asked where neither changes it, and no mode sees that."""
    x, y = factors(77, 203, 91, "NT")
    program, seen = capture(torch.mm, [x, y]), []
    with torch.autocast("cpu", dtype=torch.float16), Probe(seen.append):
        plan = executor.lower(program)
    assert same_bits(plan([x, y])[0], torch.mm(x, y)) and not seen


TRAINING = """
import torch, gradc
from gradc.bits import same_bits
from gradc import native

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(96, 320), torch.nn.GELU(), torch.nn.Linear(320, 64))
inputs = torch.randn(128, 96)

def gradients(run):
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = run(inputs).float().square().mean()
    loss.backward()
    return [loss, *(p.grad for p in model.parameters())]

compiled = gradc.compile(model)
for _ in range(4):
    assert all(map(same_bits, gradients(compiled), gradients(model)))
print(sum(holds for kernel, _, _, holds in native.extension.proofs() if kernel == "product of bfloat16"))
"""


@pytest.mark.parametrize("instructions", ["AVX512_CORE", "AVX512_CORE_BF16", "DEFAULT"])
def test_training_where_onednn_has_fewer_instructions(instructions: str) -> None:
    done = python("-c", TRAINING, environment=os.environ | {"ONEDNN_MAX_CPU_ISA": instructions})
    assert done.returncode == 0, done.stderr
    if instructions == "AVX512_CORE" and torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert int(done.stdout) >= 5  # four times slower there than float32
