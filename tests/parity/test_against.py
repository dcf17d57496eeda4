"""gradc.check against other compilers than gradc, over several steps, and of steps that call torch.compile themselves."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import get_compilation_metrics

import gradc
from gradc.bits import same_bits
from gradc.cli import main
from gradc.errors import ConfigError
from gradc.parity.differences import Kind

INNER_AUTOCAST = Path(__file__).parent / "inner_autocast.py"


def names(report: Any) -> list[str]:
    return [difference.name for difference in report.differences]


def test_backward_compiled_under_autocast_is_wrong_against_aot_eager(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{INNER_AUTOCAST}:step", "--against", "aot_eager"]) == 1
    text = capsys.readouterr().out
    assert "\nAgainst aot_eager: " in text and " wrong" in text and "\n  wrong: grad of w.weight: off by " in text


def test_backward_compiled_under_autocast_is_eagers_with_gradc(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{INNER_AUTOCAST}:step"]) == 0
    assert "all equal eager" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{INNER_AUTOCAST}:step", "--against", "aot_eager", "--steps", "2", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["against"], report["ok"], report["kind"], report["num_steps"]) == ("aot_eager", False, "wrong", 2)
    assert {"grad of w.weight", "grad of h"} == {found["name"] for found in report["differences"]}


@pytest.mark.parametrize(
    "arguments", [["--against", "magic"], ["--steps", "0"], ["--against", "inductor", "--backend", "replay"]]
)
def test_mistakes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{INNER_AUTOCAST}:step", *arguments]) == 2
    assert "gradc: error: " in capsys.readouterr().err


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.used(x), self.unused(x)


def first_head(model: nn.Module, x: Tensor) -> None:
    torch.compile(model)(x)[0].sum().backward()


def test_zeros_instead_of_none_for_an_unused_output() -> None:
    report = gradc.check(first_head, TwoHeads(), torch.randn(2, 3), against="aot_eager")
    assert names(report) == ["grad of args[0].unused.weight", "grad of args[0].unused.bias"]
    assert {found.why for found in report.differences} == {"zeros instead of None"}
    assert gradc.check(first_head, TwoHeads(), torch.randn(2, 3)).is_conclusive


def test_a_function_that_a_step_compiles_runs_as_written_in_eager() -> None:
    def twice(function: Any) -> Any:
        return lambda x: 2 * function(x)

    @torch.compiler.disable
    def step(x: Tensor) -> Tensor:
        return torch.compile(torch.sin)(x)

    report = gradc.check(step, torch.ones(3), against=twice)
    assert names(report) == ["result"] and report.differences[0].largest == pytest.approx(0.8414, abs=1e-3)


@pytest.mark.parametrize("against", ["gradc", "aot_eager"])
def test_eager_runs_cond_which_compiles_its_branches(against: str) -> None:
    """Under the stance that has nothing compiled, torch.cond raised; and what it compiles was no call of the step's."""

    def step(x: Tensor) -> Tensor:
        return 2 * torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).exp()

    report = gradc.check(step, torch.ones(3, requires_grad=True), against=against)
    assert report.ok and (report.num_compiled or report.left_out)


def test_inductor_rounds_otherwise_and_the_histogram_says_how_far() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8), nn.Softmax(1))
    report = gradc.check(lambda model, x: model(x).square().sum(), model, torch.randn(16, 32), against="inductor")
    made = [(each.co_name, each.co_filename, each.recompile_reason) for each in get_compilation_metrics()]
    assert report.kind is Kind.ROUNDED and report.num_compiled == 1, f"{report}\n{made}"
    assert "  rounds otherwise: " in str(report) and " ulp  " in report.in_full() and "####" in report.in_full()


def test_the_gradient_of_a_bias_before_batch_norm_is_nothing_but_rounding() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    report = gradc.check(lambda model, x: model(x).square().sum(), model, torch.randn(16, 8), against="inductor")
    assert report.kind is Kind.ROUNDED and "grad of args[0].0.bias" in names(report), str(report)


class Drawing:
    """A step that draws from every generator there is, and trains."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.generator = torch.Generator()

    def step(self) -> Tensor:
        self.optimizer.zero_grad()
        x = torch.randn(6, 4, generator=self.generator) * random.random() * float(np.random.rand()) + torch.rand(6, 4)
        loss = self.model(x).square().sum() + self.model(x).sin().sum()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.detach()

    def state(self) -> list[Any]:
        tensors = [tensor.clone() for tensor in self.model.state_dict().values()]
        generators = [torch.get_rng_state(), self.generator.get_state(), repr(random.getstate()), repr(np.random.get_state())]
        return tensors + generators + [self.optimizer.param_groups[0]["lr"], len(self.optimizer.state)]


drawing = Drawing()


@pytest.mark.parametrize("against", ["gradc", "aot_eager", lambda step: step])
def test_steps_go_on_from_each_other_and_everything_is_put_back(against: Any) -> None:
    before = drawing.state()
    report = gradc.check(drawing.step, steps=3, against=against)
    assert report.is_conclusive and same_bits(before, drawing.state())
    if against == "aot_eager":  # which compiles the optimizer with scalars as tensors
        assert report.kind is Kind.ROUNDED and {found.step for found in report.differences} == {1, 2, 3}
    else:
        assert f"{report.num_compared} values compared in 3 steps (3 runs): all equal eager" in str(report)


def test_the_step_from_which_on_it_differs_is_named() -> None:
    def wrong(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        calls: list[int] = []

        def run() -> Tensor:
            calls.append(1)
            if len(calls) == 2:
                drawing.model[0].weight.data.mul_(1.5)
            return step()

        return run

    report = gradc.check(drawing.step, steps=3, against=wrong)
    assert {found.step for found in report.differences} == {2, 3} and report.kind is Kind.WRONG
    assert "Against wrong: " in str(report) and " compared in 3 steps (5 runs): in step 2, " in str(report)
    assert " more in later steps follow from these." in str(report)


def test_an_optimizer_magnifies_a_rounding_and_that_is_no_wrong_value() -> None:
    """Adam's first step has the size of the learning rate, whatever the size of the gradient."""
    weight = nn.Parameter(torch.tensor([1.0, 1.0]))
    optimizer = torch.optim.Adam([weight], lr=0.5)

    def trained(noise: float) -> None:
        optimizer.zero_grad()
        (weight * torch.tensor([1.0, noise])).sum().backward()
        optimizer.step()

    def step() -> None:
        trained(1e-7)

    report = gradc.check(step, steps=2, against=lambda step: lambda: trained(-1e-7))
    assert report.kind is Kind.ROUNDED and "weight" in names(report), str(report)
    assert max(found.largest or 0 for found in report.differences if found.name == "weight") > 0.1


def test_other_draws_are_seen() -> None:
    def drawing_more(step: Any) -> Any:
        def run(x: Tensor) -> Tensor:
            torch.rand(1)
            return step(x)

        return run

    report = gradc.check(torch.sin, torch.ones(3), against=drawing_more)
    assert names(report) == ["torch's random numbers"]


def test_the_last_gradient_under_other_strides_is_seen() -> None:
    def turned(step: Any) -> Any:
        def run(x: Tensor) -> None:
            step(x)
            x.grad = x.grad.t().contiguous().t()

        return run

    report = gradc.check(lambda x: x.sin().sum().backward(), torch.ones(2, 3, requires_grad=True), against=turned)
    assert names(report) == ["grad of args[0]"] and report.kind is Kind.STRIDES


def test_a_compiler_that_takes_nothing_proves_nothing() -> None:
    report = gradc.check(lambda: 3, against="aot_eager")
    assert report.ok and not report.is_conclusive and "Nothing was compiled: this says nothing about aot_eager." in str(report)


def test_unknown_compilers() -> None:
    with pytest.raises(ConfigError, match="no such backend. Use a function, or one of: .*inductor"):
        gradc.check(torch.sin, torch.ones(3), against="magic")


def test_torch_compile_is_what_it_was() -> None:
    original = torch.compile
    gradc.check(torch.sin, torch.ones(3), against="eager")
    assert torch.compile is original
