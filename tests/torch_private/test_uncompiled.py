"""What Dynamo gives to no graph is counted, call by call, with place, reason and advice; under fullgraph it raises."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc.bits import same_bits
from gradc.journal import listening
from gradc.torch_private.dynamo import Uncompiled
from gradc.torch_private.dynamo_patches import recurrences


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    gradc.reset()
    yield
    gradc.reset()


def branches(x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 0:
        return y.sin()
    return y.cos()


def prints(x: Tensor) -> Tensor:
    y = x * 2
    print(end="")
    return y.sin()


def generates(x: Tensor) -> Iterator[Tensor]:
    yield x * 2
    yield x.sin()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = nn.GRU(4, 5, num_layers=22), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x)[0]).sin()


def doubled(x: Tensor) -> Tensor:
    return x * 2


def transformed(transform: Callable[..., Any]) -> Callable[[Tensor], Any]:
    inner = gradc.compile(lambda x: (x * 2).sin().sum())
    return lambda x: transform(inner)(x)


def forward_mode(inner: Callable[..., Any]) -> Callable[[Tensor], Any]:
    return lambda x: torch.func.jvp(inner, (x,), (x,))


PROGRAMS: dict[str, tuple[Callable[[], Callable[[Tensor], Any]], str]] = {
    "branch": (lambda: gradc.compile(branches), "Data-dependent branching"),
    "print": (lambda: gradc.compile(prints), "Failed to trace builtin operator"),
    "generator": (lambda: lambda x, run=gradc.compile(generates): list(run(x)), "Attempt to trace generator"),
    "recurrent": (lambda: gradc.compile(Recurrent()), "gradc: recurrence of many steps"),
    "sparse": (lambda: lambda x, run=gradc.compile(doubled): run(x.to_sparse_csr()), "gradc: sparse tensor"),
    "vmap": (lambda: transformed(torch.func.vmap), "Unsupported functorch tracing attempt"),
    "grad": (lambda: transformed(torch.func.grad), "Unsupported functorch tracing attempt"),
    "jvp": (lambda: transformed(forward_mode), "Unsupported functorch tracing attempt"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_call_is_counted_with_place_and_reason(name: str) -> None:
    make, kind = PROGRAMS[name]
    run, x = make(), torch.randn(4, 4)
    with listening() as events:
        for number in range(1, 4):
            run(x)
            assert dict(gradc.counters["uncompiled"]) == {kind: number}
    (found,) = [event.what for event in events if isinstance(event.what, Uncompiled)]
    assert found.kind == kind and found.detail and found.where.startswith(f"File: {__file__}:")


def test_what_runs_between_is_eagers() -> None:
    x = torch.randn(3, 4, 4, requires_grad=True)
    for function in (branches, prints, Recurrent()):
        grads = []
        for run in (function, gradc.compile(function)):
            x.grad = None
            run(x).sum().backward()
            grads.append(x.grad)
        assert same_bits(*grads)


def test_the_logs_say_it_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("gradc.__fallbacks")
    logger.addHandler(caplog.handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        run = gradc.compile(branches)
        for _ in range(3):
            run(torch.ones(3))
    finally:
        logger.removeHandler(caplog.handler)
        logger.setLevel(level)
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith(f"graph break: Data-dependent branching: Python asks for a tensor's value\n  at File: {__file__}:")
    assert text.endswith("code: if y.sum() > 0:\n  Use torch.where, or torch.cond; or leave the choice to the caller.")


def adds_length(x: Tensor, text: str) -> Tensor:
    return x * 2 + len(text)


def test_every_call_past_the_recompile_limit_is_counted_and_those_before_stay_compiled() -> None:
    run, x = gradc.compile(adds_length), torch.ones(3)
    with listening() as events:
        for _ in range(2):
            for number in range(11):
                assert same_bits(run(x, "a" * number), x * 2 + number)
    assert dict(gradc.counters["uncompiled"]) == {"recompile limit": 6}
    (found,) = [event.what for event in events if isinstance(event.what, Uncompiled)]
    assert found.detail.startswith("compiled 8 times already; now `text == ") and "raise torch._dynamo.config" in found.advice


@pytest.mark.parametrize("function", [branches, prints, generates, Recurrent()])
def test_fullgraph_raises(function: Any) -> None:
    run = gradc.compile(function, fullgraph=True)
    for _ in range(2):
        with pytest.raises(gradc.FallbackError, match="fullgraph=True, but a part would run eagerly") as caught:
            run(torch.randn(3, 4, 4))
        assert f"File: {__file__}:" in str(caught.value)
    assert not gradc.counters["uncompiled"]


def test_fullgraph_raises_at_the_recompile_limit() -> None:
    run, x = gradc.compile(adds_length, fullgraph=True), torch.ones(3)
    for number in range(8):
        run(x, "a" * number)
    with pytest.raises(gradc.FallbackError, match="recompile limit: compiled 8 times already"):
        run(x, "a" * 8)


def test_fullgraph_of_a_whole_step_raises_where_a_graph_breaks_but_at_backward() -> None:
    def step(x: Tensor, is_printing: bool) -> Tensor:
        y = (x * 2).sin()
        if is_printing:
            print(end="")
        y.sum().backward()
        return y

    run, x = gradc.compile(step, fullgraph=True), torch.ones(3, requires_grad=True)
    run(x, False)
    assert not gradc.counters["uncompiled"]
    with pytest.raises(gradc.FallbackError, match="Failed to trace builtin operator"):
        run(x, True)


def test_a_reset_gives_a_function_another_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.GRU(4, 5), torch.randn(3, 4, 4)
    run = gradc.compile(module)
    with monkeypatch.context() as patched:
        patched.setattr(recurrences, "_MAX_STEPS", 0)
        run(x)
        run(x)
    torch.compiler.reset()
    run(x)
    assert gradc.counters["uncompiled"] == {"gradc: recurrence of many steps": 2}


def test_a_function_without_ops_is_nothing_uncompiled() -> None:
    def inner(x: Tensor) -> tuple[int, ...]:
        return tuple(x.shape)

    run = gradc.compile(lambda x: inner(x))
    assert run(torch.ones(3)) == (3,) and not gradc.counters["uncompiled"]


def test_other_compilers_count_nothing() -> None:
    gradc.compile(branches)(torch.ones(3))
    gradc.reset()
    for function in (branches, prints, nn.LSTM(4, 5)):
        torch.compile(copy.copy(function), backend="eager")(torch.randn(3, 4, 4))
    assert not gradc.counters["uncompiled"]


def test_a_region_that_runs_eagerly_is_counted_at_each_call() -> None:
    run, x = gradc.compile(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))), torch.ones(3, requires_grad=True)
    for _ in range(3):
        run(x)
    assert list(gradc.counters["fallbacks"].values()) == [3]
