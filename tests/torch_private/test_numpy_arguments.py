"""Arrays as indices and numbers of NumPy's: torch takes them without calculating, and so do graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import gradc
from gradc.bits import same_bits
from tests.oracle import check, leaf

INDEX = np.array([3, 1, 2])
Function = Callable[..., torch.Tensor]


def step_of(function: Function, arguments: Sequence[Any], compile: Any, x: torch.Tensor) -> Any:
    """What each call returns, or its error; all arguments one after the other."""
    run, seen = compile(function), []
    for argument in arguments:
        try:
            seen.append(run(x, argument))
            seen[-1].sum().backward()
        except (IndexError, TypeError, ValueError) as error:
            seen.append((type(error).__name__, str(error)))
    return seen


def compare(function: Function, arguments: Sequence[Any]) -> None:
    check(lambda compile, x: step_of(function, arguments, compile, x), leaf(6, 6), allow_fallback=True)


def num_graphs(function: Function, arguments: Sequence[Any]) -> int:
    torch._dynamo.reset()
    gradc.counters.clear()
    step_of(function, arguments, gradc.compile, torch.ones(6, 6, requires_grad=True))
    assert not gradc.counters["uncompiled"], gradc.counters["uncompiled"]
    return int(gradc.counters["stats"]["unique_graphs"])


INDICES: dict[str, Function] = {
    "first": lambda x, index: x.sin()[index].cos(),
    "second": lambda x, index: x.sin()[:, index].cos(),
    "beside a number": lambda x, index: x.sin()[1, index].cos(),
    "twice": lambda x, index: x.sin()[index, index] * x[index, 0],
    "beside a tensor": lambda x, index: x.sin()[index, torch.tensor([1, 0, 2])],
    "assigned": lambda x, index: torch.zeros(6, 6).index_put_((torch.tensor(0),), x[0]).clone().mul(2)[index] * x[index],
}


@pytest.mark.parametrize("name", INDICES)
def test_an_array_of_indices_is_one_graph(name: str) -> None:
    function, arguments = INDICES[name], (INDEX, INDEX[[2, 0, 1]], np.array([0, 0, 5]), -INDEX)
    compare(function, arguments)
    assert num_graphs(function, arguments) == 1


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_an_array_that_is_not_to_be_written() -> None:
    """It stays with Python: torch warns where it is made a tensor, but not where it is an index."""
    read_only = np.broadcast_to(np.array(2), (3,))
    torch._dynamo.reset()
    gradc.counters.clear()
    seen = step_of(INDICES["first"], (INDEX, read_only, INDEX), gradc.compile, x := torch.rand(6, 6, requires_grad=True))
    assert all(same_bits(each, x.sin()[index].cos()) for each, index in zip(seen, (INDEX, read_only, INDEX)))
    assert gradc.counters["uncompiled"]["gradc: NumPy"] >= 1


def test_what_is_assigned_by_an_array() -> None:
    def function(x: torch.Tensor, index: Any) -> torch.Tensor:
        y = x * 2
        y[index] = x[0].sin()
        return y.cos()

    compare(function, (INDEX, np.array([0, 4]), INDEX))


def test_other_arrays_than_plain_indices() -> None:
    others = (
        *(INDEX[::-1], INDEX[::2], INDEX.astype(np.int32), INDEX.astype(np.int8), np.array([[1, 2], [3, 4]]), np.array(2)),
        *(np.array([True, False] * 3), np.array([], dtype=np.int64), np.array([1.5]), np.array([99]), np.array(["a"])),
        *(INDEX.view(np.matrix), INDEX.astype(">i8")),
    )
    for other in others:
        compare(INDICES["first"], (INDEX, other, INDEX, other))
        compare(INDICES["first"], (other, INDEX))


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_what_is_written_into_the_array_before_backward(dtype: Any) -> None:
    """Torch takes the memory of an array of int64 as it is, and copies any other."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        run, index = compile(lambda x, index: x.sin()[index].cos()), INDEX.astype(dtype)
        results = []
        for number in range(3):
            results.append(run(x, index))
            index[:] = number
            results[-1].sum().backward()
        return results

    check(step, leaf(6, 6))


def test_what_is_written_into_the_array_inside_is_seen() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        def function(x: torch.Tensor, index: Any) -> Any:
            before = x.sin()[index]
            index[0] = 5
            return before * x.cos()[index], x[index]

        run, index = compile(function), INDEX.copy()
        return [run(x, index) for _ in range(3)], index

    check(step, leaf(6, 6), allow_fallback=True)


def test_an_array_that_an_object_holds() -> None:
    class Batches:
        order = INDEX

    def step(compile: Any, x: torch.Tensor) -> Any:
        batches, seen = Batches(), []
        run = compile(lambda x: x.sin()[batches.order].cos())
        for order in (INDEX, INDEX[:2], np.array([5])):
            batches.order = order.copy()
            seen.append(run(x))
        return seen

    check(step, leaf(6, 6))


NUMBERS: dict[str, tuple[Function, Sequence[Any]]] = {
    "clamp": (lambda x, bound: x.sin().clamp(max=bound).cos(), [np.float64(n / 7) for n in range(1, 5)]),
    "product": (lambda x, scale: (x.sin() * scale).cos() + scale * x, [np.float32(n / 7) for n in range(1, 5)]),
    "quotient": (lambda x, scale: (x.sin() / scale).cos() - scale, [np.float64(n / 7) for n in range(1, 5)]),
    "index": (lambda x, n: x.sin()[n].cos(), [np.int64(n) for n in range(4)]),
    "slice": (lambda x, n: x.sin()[:n].cos(), [np.int32(n) for n in range(1, 5)]),
    "dimension": (lambda x, n: x.sin().sum(n).cos(), [np.int64(0), np.int64(1), np.int64(0)]),
    "alpha": (lambda x, n: torch.add(x.sin(), x, alpha=n), [np.float32(0.1), np.float32(0.7), np.float32(-0.0)]),
    "kinds": (lambda x, n: (x.sin() * n).cos(), [np.float64(0.3), 0.3, np.float32(0.3), 2, np.int64(2), np.bool_(True)]),
    "zeros": (lambda x, n: (x * n).atan2(x * n), [np.float64(0.3), np.float64(0.0), np.float64(-0.0)]),
    "unusual": (lambda x, n: (x * n).sin(), [np.float64("inf"), np.float64("nan"), np.complex64(2), np.uint8(3)]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    compare(*NUMBERS[name])


def test_numbers_of_a_step_end_no_graph() -> None:
    for name in ("clamp", "product", "quotient", "slice"):
        assert num_graphs(*NUMBERS[name]) <= 2
