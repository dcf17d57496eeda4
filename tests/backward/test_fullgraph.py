"""fullgraph=True holds in backward; one count for one backward; and what is kept as impossible is a property of the program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import gradc
from gradc import native
from gradc.backward import cache
from gradc.bits import same_bits
from gradc.executor.core import interpret
from gradc.journal import Fallback, listening
from tests.oracle import leaf

grad = torch.autograd.grad
CANNOT_TRACE = "backward that cannot be traced"


def phase(x: torch.Tensor) -> torch.Tensor:
    """The formula of eig asks for values that a fake tensor has not."""
    return torch.linalg.eig(x)[0].abs().sum()


@pytest.fixture(params=["native", "python"])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With the native nodes, and with those in Python, which serve where the extension is not built."""
    if request.param == "python":
        gradc.register_backend("interpreted", interpret.lower)
    gradc.reset()
    yield request.param
    gradc.backends.registry._backends.pop("interpreted", None)


@pytest.fixture(params=["plain", "captured"])
def engine(request: pytest.FixtureRequest, executor: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """What runs the backward pass: torch's engine, or compiled autograd."""
    return contextlib.nullcontext if request.param == "plain" else gradc.compiled_autograd.enable


def compiled(function: Callable[..., Any], executor: str, **options: Any) -> Any:
    return gradc.compile(function, backend="interpreted" if executor == "python" else "replay", **options)


def test_backward_that_cannot_be_traced_raises_under_fullgraph(executor, engine):
    f = compiled(phase, executor, fullgraph=True)
    x = leaf(3, 3)()
    for _ in range(3):
        y = f(x)
        with engine(), pytest.raises(gradc.FallbackError, match="LinalgEigBackward0") as raised:
            y.backward()
        assert "test_fullgraph.py" in str(raised.value) and "linalg.eig" in str(raised.value), "the user's line"
    assert x.grad is None and not gradc.counters["fallbacks"]
    assert not torch._C._len_torch_dispatch_stack()


def test_a_backward_that_raised_under_fullgraph_has_freed_nothing(executor, engine):
    x = leaf(3, 3)()
    y = compiled(phase, executor, fullgraph=True)(x)
    for _ in range(3):
        with engine(), pytest.raises(gradc.FallbackError, match="LinalgEigBackward0"):
            y.backward()


def test_derivative_that_cannot_be_traced_raises_under_fullgraph(executor):
    f = compiled(lambda x: x.cumprod(0).sin().sum(), executor, fullgraph=True)
    x = leaf(4)()
    for _ in range(2):
        with pytest.raises(gradc.FallbackError, match="derivative that cannot be traced.*CumprodBackward0"):
            grad(f(x), x, create_graph=True)
    assert same_bits(grad(f(x), x)[0], grad(x.cumprod(0).sin().sum(), x)[0]), "first order is compiled"


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled", "ignore:Error detected in")
def test_anomaly_mode_during_backward_raises_under_fullgraph(executor):
    x = leaf(3)()
    y = compiled(lambda x: x.sin().sum(), executor, fullgraph=True)(x)
    with torch.autograd.detect_anomaly(check_nan=False):
        with pytest.raises(gradc.FallbackError, match="anomaly mode during backward"):
            y.backward()


def test_a_whole_step_raises_under_fullgraph():
    """Compiled autograd runs its backward."""

    def step(x):
        phase(x).backward()
        return x.grad

    with pytest.raises(gradc.FallbackError, match="LinalgEigBackward0"):
        gradc.compile(step, fullgraph=True)(leaf(3, 3)())


def test_one_backward_that_cannot_be_traced_is_counted_once(executor, engine):
    f = compiled(phase, executor)
    for number in (1, 2, 3):
        x = leaf(3, 3)()
        y = f(x)
        with engine():
            y.backward()
        assert same_bits(x.grad, grad(phase(x), x)[0])
        assert gradc.counters["fallbacks"] == {CANNOT_TRACE: number}


def test_one_derivative_that_cannot_be_traced_is_counted_once(executor):
    f = compiled(lambda x: x.cumprod(0).sin().sum(), executor)
    x = leaf(4)()
    for number in (1, 2, 3):
        grad(f(x), x, create_graph=True)
        assert gradc.counters["fallbacks"] == {"derivative that cannot be traced": number}


def test_the_reason_is_said_each_time(executor, engine):
    f = compiled(phase, executor)
    x = leaf(3, 3)()
    with listening() as events:
        for _ in range(3):
            y = f(x)
            with engine():
                y.backward()
    told = [event for _, event in events if isinstance(event, Fallback)]
    assert [fallback.kind for fallback in told] == [CANNOT_TRACE] * 3
    assert {fallback.detail for fallback in told} == {"formula that differs on fake tensors: LinalgEigBackward0"}
    assert all("torch.linalg.eig(x)" in fallback.where for fallback in told)


class Stop(BaseException):
    """As KeyboardInterrupt, which would stop pytest."""


OUT_OF_MEMORY = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried")


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError(), torch.OutOfMemoryError("CUDA out of memory"), OUT_OF_MEMORY, Stop()], ids=repr
)
@pytest.mark.parametrize("name", ["trace_backward", "record_derivative"])
def test_an_error_that_says_nothing_about_the_program_is_not_kept(error, name, executor, engine, monkeypatch):
    create_graph = name == "record_derivative"
    x = leaf(4)()
    y = compiled(lambda x: x.sin().exp().sum(), executor)(x)

    def fail(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as broken, engine(), pytest.raises(type(error)):
        broken.setattr(cache, name, fail)
        grad(y, x, create_graph=create_graph, retain_graph=True)
    with engine():
        (found,) = grad(compiled(lambda x: x.sin().exp().sum(), executor)(x), x, create_graph=create_graph)
    assert same_bits(found, grad(x.sin().exp().sum(), x)[0])
    assert not [kind for kind in gradc.counters["fallbacks"] if not kind.startswith("compiled autograd")]


def test_too_deep_a_recursion_at_the_first_backward_is_not_kept(executor):
    f = compiled(lambda x: x.sin().exp().sum(), executor)
    x = leaf(4)()
    y = f(x)

    def deeper() -> None:
        """Runs backward at the greatest depth that lets it begin."""
        try:
            deeper()
        except RecursionError:
            with contextlib.suppress(RecursionError):
                y.backward(retain_graph=True)
                return
            raise

    with contextlib.suppress(RecursionError):
        deeper()
    f(x).backward()
    assert not gradc.counters["fallbacks"]


def test_without_the_extension_it_is_the_python_node():
    """What ``executor`` relies on."""
    gradc.register_backend("interpreted", interpret.lower)
    try:
        y = compiled(lambda x: x.sin(), "python")(leaf(3)())
        assert y.grad_fn.name() == "SegmentFunctionBackward"
    finally:
        gradc.backends.registry._backends.pop("interpreted")
    assert native.is_built()
