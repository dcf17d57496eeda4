"""Why a backward is captured again: the closest earlier graph, the first difference, the user's line."""

from __future__ import annotations

import inspect
import logging
import logging.handlers
from collections.abc import Callable

import pytest
import torch

import gradc
from gradc import compiled_autograd
from gradc.journal import listening, logger


def said(*backwards: Callable[[], None]) -> tuple[str, str]:
    """What is logged and told of the last of several backward passes."""
    gradc.reset()
    for backward in backwards[:-1]:
        with compiled_autograd.enable():
            backward()
    target, records = logger("recompiles"), logging.handlers.BufferingHandler(capacity=100)
    level = target.level
    target.setLevel(logging.DEBUG)
    target.addHandler(records)
    try:
        with compiled_autograd.enable(), listening() as events:
            backwards[-1]()
    finally:
        target.removeHandler(records)
        target.setLevel(level)
    told = [str(event.what) for event in events if event.artifact == "recompiles"]
    assert len(told) <= 1
    return "\n".join(record.getMessage() for record in records.buffer), "".join(told)


def reasons(*backwards: Callable[[], None]) -> str:
    """What is logged."""
    return said(*backwards)[0]


def product(x: torch.Tensor, factor: float = 2.0, other: torch.Tensor | None = None) -> torch.Tensor:
    y = x if other is None else other
    return (x * y).add(x, alpha=factor).sum()


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape).requires_grad_()


def with_grad() -> None:
    x = leaf(3)
    x.grad = torch.zeros(3)
    product(x).backward()


def with_hook() -> None:
    x = leaf(3)
    x.register_hook(lambda grad: grad * 2)
    product(x).backward()


def under_autocast() -> None:
    loss = product(leaf(3))
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward()


def asked_for_less() -> None:
    x = leaf(3)
    torch.autograd.grad(product(x), x)


@pytest.mark.parametrize(
    ("last", "node", "difference"),
    [
        (with_grad, "torch::autograd::AccumulateGrad (NodeCall 4)", "its leaf has a .grad now"),
        (with_hook, "torch::autograd::AccumulateGrad (NodeCall 4)", "runs live now: it has hooks"),
        (under_autocast, "torch::autograd::GraphRoot (NodeCall 0)", "autocast or another global mode is different"),
        (asked_for_less, "torch::autograd::GraphRoot (NodeCall 0)", "other gradients are asked for"),
        (lambda: product(leaf(3), 3.0).backward(), "AddBackward0 (NodeCall 2)", "a constant that it holds"),
        (lambda: product(leaf(3).double()).backward(), "SumBackward0 (NodeCall 1)", "a constant that it holds"),
        (lambda: product(leaf(3).exp()).backward(), "ExpBackward0 (NodeCall 4)", "was torch::autograd::AccumulateGrad"),
        (lambda: product(leaf(3), other=leaf(3)).backward(), "MulBackward0 (NodeCall 3)", "its gradients go to other nodes"),
        (lambda: product(leaf(4)).backward(), "SumBackward0 (NodeCall 1)", "sizes were [3], are [4]"),
    ],
)
def test_first_difference(last: Callable[[], None], node: str, difference: str) -> None:
    text = reasons(lambda: product(leaf(3)).backward(), last)
    assert f"closest: captured graph 0; first difference at {node}: " in text, text
    assert difference in text, text


def test_closest_is_the_earlier_graph_that_agrees_longest() -> None:
    text = reasons(
        lambda: product(leaf(3)).backward(),
        lambda: leaf(3).exp().sum().backward(),
        lambda: product(leaf(3), 3.0).backward(),
    )
    assert "closest: captured graph 0;" in text


def test_the_first_graph_is_no_recapture() -> None:
    logged, told = said(lambda: product(leaf(3)).backward())
    assert logged.startswith("Cache miss due to new autograd node: torch::autograd::GraphRoot") and "closest" not in logged
    assert not told


@pytest.mark.parametrize(
    ("last", "told"),
    [
        (with_grad, "backward pass: AccumulateGrad: its leaf has a .grad now"),
        (lambda: product(leaf(3).exp()).backward(), "backward pass: ExpBackward0: was torch::autograd::AccumulateGrad"),
        (
            lambda: product(leaf(4)).backward(),
            "backward pass: size idx 0 of SumBackward0 (NodeCall 1) went from 3 to 4, and 3 other sizes changed",
        ),
    ],
)
def test_what_listeners_are_told(last: Callable[[], None], told: str) -> None:
    assert said(lambda: product(leaf(3)).backward(), last)[1] == told


def test_other_order() -> None:
    """Which of two branches was made first decides in which order their gradients are added."""

    def loss(is_swapped: bool) -> torch.Tensor:
        x = leaf(3)
        if is_swapped:
            cos, sin = x.cos(), x.sin()
        else:
            sin, cos = x.sin(), x.cos()
        return (sin + cos).sum()

    text = reasons(lambda: loss(False).backward(), lambda: loss(True).backward())
    assert "the same nodes share other memory, or run in another order" in text


def test_line_of_an_eager_forward() -> None:
    """Known where the forward ran under anomaly mode."""

    def backward(factor: float) -> None:
        with pytest.warns(UserWarning), torch.autograd.detect_anomaly(check_nan=False):
            loss = product(leaf(3), factor)
        loss.backward()

    text = reasons(lambda: backward(2.0), lambda: backward(3.0))
    line = inspect.getsourcelines(product)[1] + 2
    assert f"test_cache_misses.py:{line} in product, code: return (x * y).add(x, alpha=factor).sum()" in text
    assert "user line unknown" in reasons(lambda: product(leaf(3)).backward(), lambda: product(leaf(3), 3.0).backward())


def test_line_of_a_compiled_forward() -> None:
    compiled = gradc.compile(product)
    text = reasons(lambda: leaf(3).exp().sum().backward(), lambda: compiled(leaf(3)).backward())
    line = inspect.getsourcelines(product)[1] + 2
    assert f"test_cache_misses.py:{line} in product, code: return (x * y).add(x, alpha=factor).sum()" in text


def test_tensor_that_is_laid_out_otherwise() -> None:
    def loss(y: torch.Tensor) -> torch.Tensor:
        return (leaf(3, 3) * y).sum()

    text = reasons(lambda: loss(torch.ones(3, 3)).backward(), lambda: loss(torch.ones(3, 3).mT).backward())
    assert "MulBackward0 (NodeCall 2): holds f32[3, 3][1, 3], where it held f32[3, 3][3, 1]" in text
