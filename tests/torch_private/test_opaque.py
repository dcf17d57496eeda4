"""NumPy inside compiled code is NumPy: its values, its types, and what it leaves of the generators."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gradc
from gradc import FallbackError
from tests.oracle import Report, check, leaf

ARRAY = np.linspace(0.1, 1, 4)
SCALE, COUNT = np.float32(0.1), np.int64(3)
NUM_CALLS = 3


def compare(function: Callable[..., Any], *args: Any, allow_fallback: bool = False) -> Report:
    """What ``function`` returns, its gradients, and the generators, after each of a few calls."""

    def step(compile: Any, x: torch.Tensor) -> list[Any]:
        run, results = compile(function), []
        for _ in range(NUM_CALLS):
            results.append(run(x, *(arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args)))
            tensors = [value for value in torch.utils._pytree.tree_leaves(results[-1]) if isinstance(value, torch.Tensor)]
            sum(value.sum() for value in tensors if value.requires_grad).backward()
        return results

    return check(step, leaf(4), allow_fallback=allow_fallback)


def test_numpy_draws_from_its_own_generator() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        hidden = x.sin()
        scale = float(np.random.rand()) + float(np.random.normal(size=3)[0])
        return hidden.cos() * scale

    assert compare(draw, allow_fallback=True).num_graphs >= 2


def test_numpy_seeded_inside() -> None:
    def draw(x: torch.Tensor) -> Any:
        np.random.seed(3)
        return x.sin(), np.random.permutation(5), np.random.randn(2, 2)

    assert compare(draw).num_graphs == 1


def test_a_generator_of_numpys() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        generator = np.random.default_rng(0)
        run = compile(lambda x: (x.sin(), generator.normal(size=2)))
        return [run(x) for _ in range(NUM_CALLS)], repr(generator.bit_generator.state)

    check(step, leaf(4))


@pytest.mark.parametrize(
    "reduce", [np.sum, np.mean, np.std, np.linalg.norm, np.prod, lambda array: array.sum(), lambda array: array @ array]
)
def test_numpy_adds_up_as_numpy_does(reduce: Callable[..., Any]) -> None:
    array = np.random.RandomState(0).rand(4097).astype(np.float32)
    assert compare(lambda x, array: (x.sin(), reduce(array)), array).num_graphs == 1


def test_an_array_in_and_an_array_out() -> None:
    def function(x: torch.Tensor, array: np.ndarray) -> Any:
        hidden = x.sin()
        array[0] = 7
        return hidden.cos(), array * 2, array, array.shape, len(array), array[1], array.T, array is None, -array, array > 0.3

    compare(function, ARRAY)


def test_an_array_is_no_constant() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        array = np.ones(4)
        run, results = compile(lambda x, array: (x.sin() * float(array[0]), array[1] if array[2] > 1 else array.ndim)), []
        for _ in range(NUM_CALLS):
            results.append(run(x, array))
            array += 1
        return results

    check(step, leaf(4), allow_fallback=True)


def test_from_a_tensor_to_numpy_and_back() -> None:
    def function(x: torch.Tensor) -> Any:
        array = (x * 2).detach().numpy()
        weights = torch.from_numpy(np.exp(array)) + torch.as_tensor(array) + torch.tensor(array)
        return weights * x.sin(), np.asarray(x.detach()), x.detach().__array__(), x.numpy(force=True).dtype == np.float32

    assert compare(function).num_graphs >= 2


def test_an_array_shares_memory_with_its_tensor() -> None:
    def function(x: torch.Tensor) -> Any:
        hidden = x.detach().clone()
        array = hidden.numpy()
        hidden.mul_(2)
        array += 1
        return x.sin() * hidden, array

    compare(function)


def test_numbers_of_numpy() -> None:
    def function(x: torch.Tensor, factor: Any) -> Any:
        whole = torch.arange(4)
        known = x.sin() * SCALE, SCALE * x, x**COUNT, whole * SCALE, whole + COUNT
        return known, SCALE * 2, type(SCALE), x * factor, factor / 3

    for factor in (np.float64(0.3), np.float32(0.3), np.float16(0.3), np.int32(2), np.bool_(True), np.complex64(1 + 2j)):
        compare(function, factor)


def test_constant_numbers_of_numpy_end_no_graph() -> None:
    report = compare(lambda x: (x.sin() * SCALE * np.pi).clamp(max=COUNT).sum(dim=np.int64(0)) if COUNT is not None else x)
    assert report.num_graphs <= 2  # the one break is at the call np.int64(0)
    step = lambda compile, x: compile(lambda x: (x.sin() * SCALE * np.pi).clamp(max=COUNT))(x)
    assert check(step, leaf(4)).num_graphs == 1


def test_a_number_of_numpy_that_was_set_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        run, results = compile(lambda x: x.sin() * SCALE), []
        for value in (0.5, 0.25):
            monkeypatch.setitem(globals(), "SCALE", np.float32(value))
            results.append(run(x))
        return results

    check(step, leaf(4))


def test_shapes_and_types_of_numpy() -> None:
    def function(x: torch.Tensor) -> Any:
        hidden = x.sin().reshape(int(np.prod(x.shape)))
        return hidden / np.sqrt(x.shape[0]), np.finfo(np.float32).eps * x, np.finfo(np.float32).max * 2, np.dtype("float32")

    compare(function)


def test_numpy_under_fullgraph() -> None:
    for function in (lambda x: x * np.random.rand(), lambda x: x + torch.from_numpy(ARRAY), lambda x: x.detach().numpy()):
        with pytest.raises((FallbackError, torch._dynamo.exc.Unsupported), match="gradc: NumPy|numpy"):
            gradc.compile(function, fullgraph=True)(torch.ones(4, requires_grad=True))


def test_torchs_own_compiler_traces_numpy_as_before() -> None:
    torch._dynamo.reset()
    graphs = []
    backend = lambda graph, _: graphs.append(graph) or graph.forward
    compiled = torch.compile(lambda x: np.sum(x) + 1, backend=backend, fullgraph=True)
    assert compiled(np.ones(3)) == 4
    assert len(graphs) == 1


def draws(x: torch.Tensor) -> Any:
    hidden = x.sin() * random.random()
    numbers = [1, 2, 3]
    random.shuffle(numbers)
    return hidden.cos() + random.gauss(0, 1), numbers, random.randint(1, 9), random.sample(numbers, 2), random.choice(numbers)


def seeds(x: torch.Tensor) -> Any:
    first = random.random()
    random.seed(7)
    second = random.uniform(0, 1)
    return x.sin() * second, first, second, type(first)


def restores(x: torch.Tensor) -> Any:
    state = random.getstate()
    first, _ = random.random(), random.randrange(7)
    random.setstate(state)
    return x.sin() * first, random.random() == first


def own_generator(x: torch.Tensor) -> Any:
    generator = random.Random(5)
    return x.sin() * generator.random(), generator.randint(0, 9), generator.getstate()[1][-1]


def draws_and_raises(x: torch.Tensor) -> Any:
    try:
        first = random.random()
        raise ValueError(first)
    except ValueError as error:
        return x.sin(), error.args[0], random.random()


@pytest.mark.parametrize("function", [draws, seeds, restores, own_generator, draws_and_raises])
def test_pythons_generator(function: Callable[..., Any]) -> None:
    compare(function, allow_fallback=True)


def test_a_generator_of_pythons_from_outside() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        generator = random.Random(5)
        run = compile(lambda x: (x.sin() * generator.random(), generator.gauss(0, 1), generator.randint(0, 9)))
        return [run(x) for _ in range(NUM_CALLS)], generator.random()

    check(step, leaf(4), allow_fallback=True)
