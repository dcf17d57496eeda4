"""gradc.check sees every bit of results, gradients, arguments and buffers, and names the value that is not eager's."""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc.bits import same_bits
from gradc.errors import CheckError

Change = Callable[[Tensor], Tensor]
NAMES = ["result", "args[0]", "grad of args[0]", "scale", "grad of scale", "last"]
CHANGES: list[tuple[float, Change]] = [
    (1.0, lambda t: torch.nextafter(t, torch.full_like(t, 9))),
    (0.0, torch.neg),
    (-0.0, torch.neg),
    (1.0, lambda t: t + float("nan")),
    (float("nan"), torch.zeros_like),
]


class Leaving(nn.Module):
    """A step that leaves ``number`` in the place called ``name``, and where it is compiled what ``change`` makes of it."""

    last: Tensor

    def __init__(self, name: str, number: float) -> None:
        super().__init__()
        self.name, self.number, self.change = name, number, lambda t: t
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale
        y.sum().backward()
        places = {"result": y, "args[0]": x, "grad of args[0]": x.grad, "last": self.last}
        tensor = {**places, "scale": self.scale, "grad of scale": self.scale.grad}[self.name]
        assert tensor is not None
        tensor.data.copy_(self.change(torch.full((2,), self.number)))
        return y


def checked(name: str, number: float, change: Change) -> Any:
    """What gradc.check says where the compiled step leaves something else than the eager one."""

    def wrong(step: Leaving) -> Leaving:
        step.change = change
        return step

    return gradc.check(Leaving(name, number), torch.ones(2, requires_grad=True), against=wrong)


@pytest.mark.parametrize("name", NAMES)
def test_every_bit_in_every_place(name: str) -> None:
    for number, change in CHANGES:
        report = checked(name, number, change)
        assert [difference.name for difference in report.differences] == [name], (number, str(report))
        with pytest.raises(CheckError, match="1 (wrong|rounds otherwise)"):
            report.raise_if_different()


@pytest.mark.parametrize("name", NAMES)
def test_any_nan_is_any_other(name: str) -> None:
    other_nan = torch.tensor([-1, -1], dtype=torch.int32).view(torch.float32)
    assert checked(name, float("nan"), lambda t: other_nan).ok


@pytest.mark.parametrize("eager, other", [(0.0, -0.0), (1, 1.0), (None, 0), (1.0, float("nan")), ("a", "b")])
def test_numbers(eager: Any, other: Any) -> None:
    for compiled, is_ok in ((eager, True), (other, False)):
        report = gradc.check(lambda: eager, against=lambda step: lambda: compiled)
        assert report.ok is is_ok


def test_sparse_gradients() -> None:
    def step(table: Tensor) -> None:
        torch.nn.functional.embedding(torch.tensor([1, 1]), table, sparse=True).sum().backward()

    def wrong(step: Any) -> Any:
        def run(table: Tensor) -> None:
            step(table)
            assert table.grad is not None
            table.grad = table.grad.coalesce()

        return run

    table = torch.ones(3, 2, requires_grad=True)
    assert gradc.check(step, table).ok
    assert [difference.name for difference in gradc.check(step, table, against=wrong).differences] == ["grad of args[0]"]


class Trained:
    """A step over a model and an optimizer that it is not given."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(4, 3)).square().sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


trained = Trained()


def global_step() -> Tensor:
    return trained.step()


def test_a_model_and_an_optimizer_that_a_step_names_are_compared_and_put_back() -> None:
    trained.step()
    before = [*trained.model.state_dict().values(), *(parameter.grad for parameter in trained.model.parameters())]
    before = [value.clone() for value in before] + [copy.deepcopy(trained.optimizer.state_dict())["state"][0]["exp_avg"]]
    model, optimizer = trained.model, trained.optimizer

    def closing() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()

    for step in (trained.step, global_step, closing):
        report = gradc.check(step)
        assert report.ok and report.is_conclusive and report.num_compared > 20, str(report)
        after = [*model.state_dict().values(), *(parameter.grad for parameter in model.parameters())]
        assert same_bits([*after, optimizer.state_dict()["state"][0]["exp_avg"]], before)

    def wrong(step: Any) -> Any:
        def run() -> Tensor:
            loss = step()
            model[0].weight.data.mul_(2)
            return loss

        return run

    assert [difference.name.split(".", 1)[-1] for difference in gradc.check(closing, against=wrong).differences] == ["0.weight"]


def test_a_step_that_eager_does_not_repeat_is_no_difference() -> None:
    numbers = itertools.count()
    report = gradc.check(lambda x: x.sin() + next(numbers), torch.ones(3))
    assert [difference.name for difference in report.irreproducible] == ["result"]
    assert report.ok and not report.is_conclusive
    assert "The step itself is not reproducible in eager, which gives 1 value otherwise" in str(report)


def test_where_nothing_was_compiled_it_says_so() -> None:
    report = gradc.check(lambda x: (x.sin(), weakref.ref(x * 2)() is None), torch.ones(3))
    assert report.ok and not report.is_conclusive and report.num_compiled == 0
    assert "\nNothing was compiled: this says nothing about gradc.\nran eagerly: gradc: weakref.ref" in str(report)


def breaking(x: Tensor) -> Tensor:
    y = x.sin()
    print(end="")
    return y.cos()


def test_what_ran_eagerly_is_named_in_a_report_that_is_conclusive() -> None:
    report = gradc.check(breaking, torch.ones(3))
    assert report.ok and report.is_conclusive and "\ngraph break: Failed to trace builtin operator" in str(report)


def test_what_the_step_raises_in_eager_is_raised() -> None:
    def step(x: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        gradc.check(step, torch.ones(3))


def test_what_only_the_compiled_step_raises_is_a_difference() -> None:
    def wrong(step: Any) -> Any:
        def run(x: Tensor) -> Tensor:
            raise RuntimeError("of the compiler")

        return run

    report = gradc.check(torch.sin, torch.ones(3), against=wrong)
    (difference,) = report.differences
    assert (difference.name, difference.compiled) == ("exception", "'RuntimeError: of the compiler'")


def test_of_many_differences_the_worst_are_shown() -> None:
    def wrong(step: Any) -> Any:
        return lambda tensors: [torch.nextafter(tensor, torch.tensor(9.0)) for tensor in tensors[:-1]] + [None]

    report = gradc.check(lambda tensors: [tensor * 1 for tensor in tensors], [torch.ones(2) for _ in range(50)], against=wrong)
    text = str(report)
    assert len(report.differences) == 50 and ": 1 wrong, 49 round otherwise.\n  wrong: result[49]: " in text
    assert text.count("\n") < 12 and "\n  and 47 more: gradc check --table" in text
    full = report.in_full()
    assert "\n... and 10 more" in full and "result[38]" in full and "result[39]" not in full and "\nresult[49] " in full
    assert max(map(len, full.partition("\nvalue ")[2].splitlines())) <= 100


def test_gradients_of_nan_are_said() -> None:
    report = gradc.check(lambda x: (x * float("nan")).sum(), torch.ones(3, requires_grad=True))
    head = "6 values compared in 1 step (3 runs): all equal eager, bit for bit. 2 of these hold NaNs in eager, too."
    assert report.ok and str(report) == head


def test_who_interrupts_is_told_in_which_run() -> None:
    calls: list[int] = []

    def step(x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return x

    with pytest.raises(KeyboardInterrupt, match=r"run 2, in eager, after \d+ s"):
        gradc.check(step, torch.ones(2))
