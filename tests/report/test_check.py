"""gradc.check sees every bit of results, gradients, arguments and buffers, and names the value that is not eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
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


def checked(monkeypatch: pytest.MonkeyPatch, name: str, number: float, change: Change) -> Any:
    """What gradc.check says where the compiled step leaves something else than the eager one."""

    def wrong(step: Leaving, **options: Any) -> Leaving:
        step.change = change
        return step

    monkeypatch.setattr("gradc.report.check.compile", wrong)
    return gradc.check(Leaving(name, number), torch.ones(2, requires_grad=True))


@pytest.mark.parametrize("name", NAMES)
def test_every_bit_in_every_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, change in CHANGES:
        report = checked(monkeypatch, name, number, change)
        assert [difference.name for difference in report.differences] == [name], (number, str(report))
        with pytest.raises(CheckError, match="1 are not eager's"):
            report.raise_if_different()


@pytest.mark.parametrize("name", NAMES)
def test_any_nan_is_any_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other_nan = torch.tensor([-1, -1], dtype=torch.int32).view(torch.float32)
    assert checked(monkeypatch, name, float("nan"), lambda t: other_nan).ok


@pytest.mark.parametrize("eager, other", [(0.0, -0.0), (1, 1.0), (None, 0), (1.0, float("nan")), ("a", "b")])
def test_numbers(eager: Any, other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for compiled, is_ok in ((eager, True), (other, False)):
        monkeypatch.setattr("gradc.report.check.compile", lambda step, **options: lambda: compiled)
        assert gradc.check(lambda: eager).ok is is_ok


def test_sparse_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(table: Tensor) -> None:
        torch.nn.functional.embedding(torch.tensor([1, 1]), table, sparse=True).sum().backward()

    def wrong(step: Any, **options: Any) -> Any:
        def run(table: Tensor) -> None:
            step(table)
            assert table.grad is not None
            table.grad = table.grad.coalesce()

        return run

    table = torch.ones(3, 2, requires_grad=True)
    assert gradc.check(step, table).ok
    monkeypatch.setattr("gradc.report.check.compile", wrong)
    assert [difference.name for difference in gradc.check(step, table).differences] == ["grad of args[0]"]
