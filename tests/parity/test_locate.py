"""gradc.check names the operation at which a compiled step begins to differ, the user's line, and the likely cause."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config
from torch import Tensor, nn

import gradc
from gradc.cli import main
from gradc.parity.against import Compiler, compiler_of, redirected
from gradc.parity.check import check_with
from gradc.parity.differences import Kind
from gradc.parity.location import Sign
from tests.parity.perturbing import Perturbing, another_value, one_ulp

INNER_AUTOCAST = Path(__file__).parent / "inner_autocast.py"


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if line.strip() == text]
    return number


def test_a_backward_that_ran_in_bfloat16(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{INNER_AUTOCAST}:step", "--against", "aot_eager"]) == 1
    assert (
        f"""\
Likely cause: backward's mm ran in bfloat16: autocast was on where the backward was compiled, off where eager ran it.
  at {INNER_AUTOCAST}:16 in inner_fn: return x.float() @ w.weight.float().T
  The first operation that differs is backward's aten.mm, which reads float32[64, 4], float32[4, 64]; \
compiled bfloat16[64, 4], bfloat16[4, 64].
Against aot_eager: """
        in capsys.readouterr().out
    )


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.used(x)
        return first, self.unused(x)


@pytest.mark.parametrize("against", ["aot_eager", "inductor"])
def test_zeros_instead_of_none(against: str) -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        torch.compile(model)(x)[0].sum().backward()

    location = gradc.check(step, TwoHeads(), torch.randn(2, 3), against=against).location
    assert (location.sign, location.op, location.phase) == (Sign.READS, "aten.addmm", "forward")
    assert location.where.endswith(f":{line_of('return first, self.unused(x)')} in forward: return first, self.unused(x)")
    assert location.cause.startswith("zeros instead of None: what was computed with it is an output that nothing uses")


def test_a_mask_that_is_drawn_again() -> None:
    """A bug of torch: with a memory budget, backward makes dropout again, and gets another mask on the CPU."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 16))
    with torch._functorch.config.patch(activation_memory_budget=0.5):
        report = gradc.check(lambda model, x: model(x).square().sum(), model, torch.randn(8, 16), against="aot_eager")
    location = report.location
    assert (location.op, location.phase, report.kind) == ("aten.native_dropout", "backward", Kind.WRONG)
    assert "draws another mask" in location.cause and location.where.startswith(f"{__file__}:")


def test_other_draws_in_forward() -> None:
    def turned(step: Any) -> Any:
        def run(x: Tensor) -> Tensor:
            torch.manual_seed(7)
            return step(x)

        return run

    location = gradc.check(lambda x: x.sin().bernoulli().cos(), torch.full((9,), 0.5), against=turned).location
    assert (location.op, location.phase) == ("aten.bernoulli", "forward")
    assert location.cause == "other random numbers were drawn: bernoulli's mask or noise differs"


def test_inductor() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8), nn.Softmax(1))
    report = gradc.check(lambda model, x: model(x).square().sum(), model, torch.randn(16, 32), against="inductor")
    assert report.kind is Kind.ROUNDED and report.location.op and report.location.where.startswith(f"{__file__}:")


class Residual(nn.Module):
    """Its first line is fused, and rounds otherwise. What backward does of the last one is traced with autocast on."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(torch.tanh(self.up(x)))
        with torch.autocast("cpu", enabled=False):
            return x + (x.float() @ self.up.weight.float().T).mean()


def test_a_fault_of_tracing_is_named_where_fused_kernels_round_before_it() -> None:
    """The first operation that differed was a fused one, whose rounding is no fault."""

    def step(model: nn.Module, x: Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.compile(model)(x).square().mean()
        loss.backward()

    torch.manual_seed(0)
    report = gradc.check(step, Residual(), torch.randn(32, 64), against="inductor")
    assert report.kind is Kind.WRONG and report.against == "inductor"
    assert report.location.cause.startswith("backward's mm ran in bfloat16: autocast was on")
    assert report.location.where.endswith("return x + (x.float() @ self.up.weight.float().T).mean()")
    assert report.notes[0] == "Wrong without fusing, too (aot_eager): it lies in what was traced."


def test_what_generated_kernels_alone_make_wrong() -> None:
    """They keep in float32 what eager rounds to bfloat16."""
    step = lambda x: (x.bfloat16() + 256).sub(256).float()
    report = gradc.check(step, torch.rand(64), against="inductor")
    assert report.kind is Kind.WRONG
    assert report.notes[0] == "Without fusing (aot_eager) all of that equals eager: it comes of the generated kernels."


def test_where_the_compiler_raises_nothing_is_said_of_fusing() -> None:
    """The run without fusing has no such error, and that counted as a value that differs."""

    def raises(step: Any) -> Any:
        raise NotImplementedError("no such kernel")

    compiler = Compiler("broken", raises, is_counted=False, unfused=compiler_of("aot_eager"))
    with redirected(compiler) as redirection:
        report = check_with(redirection, lambda x: x.sin(), (torch.ones(3),), 1)
    assert [found.name for found in report.differences] == ["exception"] and report.notes == () and report.num_runs == 3


def test_what_a_compiler_of_no_known_kind_makes_wrong_is_told_at_its_border() -> None:
    """No operation of it is seen: its step is another program. What eager makes of the first value that differs is named."""

    def wrong(step: Any) -> Any:
        def run(x: Tensor) -> Tensor:
            if not gradc_is_recording():
                return step(x) * 1.5
            return step(x)

        return run

    location = gradc.check(lambda x: x.sin().cos(), torch.ones(3), against=wrong).location
    assert (location.sign, location.op, location.phase) == (Sign.MAKES, "aten.cos", "forward")
    assert location.cause.startswith("off by 5.0e-01 of the largest element")


def gradc_is_recording() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0


def test_a_step_that_does_not_bear_the_recorder() -> None:
    def step(x: Tensor) -> Tensor:
        if gradc_is_recording():
            raise NotImplementedError("under a mode")
        return x.sin()

    report = gradc.check(step, torch.ones(3), against=lambda step: lambda x: step(x) * 2)
    assert not report.ok and report.location is not None
    assert report.location.cause == "not found, since the recorded step raises NotImplementedError: under a mode"


class WrongKernel:
    """torch's own tanh on the CPU, whose third call in a step is a little off while ``is_wrong``."""

    def __init__(self) -> None:
        self.is_wrong, self.number = False, 0

    def __call__(self, x: Tensor) -> Tensor:
        result = torch.ops.aten.tanh.out(x, out=torch.empty_like(x))
        self.number += 1
        return result.mul_(1.25) if self.is_wrong and self.number % 3 == 0 else result

    def against(self, step: Any) -> Any:
        def run(*args: Any) -> Any:
            self.is_wrong = True
            try:
                return step(*args)
            finally:
                self.is_wrong = False

        return run


def test_a_kernel_that_is_wrong_in_itself() -> None:
    kernel, library = WrongKernel(), torch.library.Library("aten", "IMPL")
    library.impl("tanh", kernel, "CPU")
    try:
        torch.manual_seed(1)
        report = gradc.check(Model(), torch.randn(5, 6), against=kernel.against)
    finally:
        library._destroy()
    location = report.location
    assert (location.sign, location.op, location.phase) == (Sign.DIFFERS, "aten.tanh", "forward")
    assert location.cause == (
        "tanh made other values of the same operands: off by 2.5e-01 of the largest element, where rounding explains 1.2e-04"
    )


class Model(nn.Module):
    """Forty operations or so in forward, more in backward: matrix products, sums, elementwise, in-place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(x).tanh() * self.scale
            x = x + y.sigmoid().exp() - (y.square() + 1).log()
            x = x / (1 + x.abs()).sum(1, keepdim=True)
            x = x.clone().add_(y)
        return x.square().mean()


def located(phase: str, place: int, change: Any) -> tuple[Perturbing, gradc.parity.report.Report]:
    torch.manual_seed(1)
    backend = Perturbing(phase, place, change)
    return backend, gradc.check(Model(), torch.randn(5, 6, requires_grad=True), against=backend)


NUM_PLACES = 5


@pytest.mark.parametrize("change", [one_ulp, another_value])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_perturbed_kernel_is_located(phase: str, change: Any) -> None:
    """In five random places each; in others what comes after rounds the ulp away, and nothing differs."""
    random_numbers, num_located = random.Random(0), 0
    while num_located < NUM_PLACES:
        place = random_numbers.randrange(10_000)
        backend, report = located(phase, place, change)
        if report.ok:
            assert change is one_ulp
            continue
        num_located += 1
        assert report.location is not None, (place, backend.name, str(report))
        found = (report.location.op, report.location.phase)
        assert found == (backend.name, phase), (place, backend.name, str(report))
        assert report.location.where.startswith(f"{__file__}:"), str(report)
