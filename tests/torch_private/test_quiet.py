"""Errors of tracing that gradc handles leave nothing in torch's logs, unless they are asked for."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch._dynamo.variables.tensor import TensorVariable

import gradc

LOG = logging.getLogger("torch._subclasses.fake_tensor")


@pytest.fixture
def heard() -> Any:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    LOG.addHandler(handler)
    yield records
    LOG.removeHandler(handler)


def mistaken(compile: Any) -> None:
    torch.compiler.reset()
    with pytest.raises(RuntimeError, match="mat1 and mat2|same reduction dim"):
        compile(lambda x, y: torch.ops.aten.mm.default(x, y).tanh())(torch.ones(3, 3), torch.ones(2, 2))


def by_torch(function: Any) -> Any:
    return torch.compile(function, backend="eager")


def test_a_handled_error_is_not_logged_but_other_compilers_is(heard: list[logging.LogRecord]) -> None:
    mistaken(gradc.compile)
    assert not heard
    mistaken(by_torch)
    assert heard


def test_where_a_number_is_read_dynamo_gives_no_advice_for_other_compilers() -> None:
    heard: list[logging.LogRecord] = []
    log, handler = logging.getLogger("torch._dynamo.variables.tensor"), logging.Handler()
    handler.emit = heard.append  # type: ignore[method-assign]
    log.addHandler(handler)

    def reads(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x.sum().item()

    try:
        for compile, is_said in ((gradc.compile, False), (by_torch, True)):
            torch.compiler.reset()
            TensorVariable._warn_capture_scalar_outputs.cache_clear()
            compile(reads)(torch.ones(3))
            assert any("Tensor.item()" in record.getMessage() for record in heard) == is_said
    finally:
        log.removeHandler(handler)


def test_who_asks_for_torch_s_logs_gets_them(heard: list[logging.LogRecord]) -> None:
    level = LOG.level
    LOG.setLevel(logging.INFO)
    try:
        mistaken(gradc.compile)
    finally:
        LOG.setLevel(level)
    assert heard


def test_undone_it_is_as_before(heard: list[logging.LogRecord]) -> None:
    gradc.compile(torch.sin)
    (patch,) = [patch for patch in gradc.patches() if patch.name == "leave_out_handled_errors"]
    assert patch.is_applied and "torch._subclasses.fake_tensor" in str(patch)
    before = len(LOG.filters)
    patch.undo()
    assert not patch.is_applied and len(LOG.filters) == before - 1
    patch.apply()


def test_an_error_of_the_program_s_own_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """A graph that runs eagerly was called as a module, and torch.fx printed the error before it came out."""

    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            y = x * 2
        return y @ weight

    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        gradc.compile(f)(torch.ones(2, 2), torch.ones(2, 2, requires_grad=True))
    assert capfd.readouterr().err == ""
