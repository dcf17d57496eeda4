"""An op raises by value inside of the user's try or with: the handler sees it, at the first call and at any later one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.linalg import LinAlgError
from torch.utils.checkpoint import checkpoint

import gradc
from tests.oracle import Compiler, check

GOOD, BAD = torch.eye(3), -torch.eye(3)
BY_VALUE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor, torch.Tensor]] = {
    "cholesky": (torch.linalg.cholesky, GOOD, BAD),
    "inv": (torch.linalg.inv, GOOD, torch.zeros(3, 3)),
    "eigh": (torch.linalg.eigvalsh, GOOD, torch.full((3, 3), float("nan"))),
    "index": (lambda i: torch.arange(3.0)[i], torch.tensor([1]), torch.tensor([9])),
    "embedding": (lambda i: F.embedding(i, torch.ones(3, 2)), torch.tensor([1]), torch.tensor([9])),
    "nll_loss": (lambda i: F.nll_loss(torch.ones(1, 3), i), torch.tensor([1]), torch.tensor([9])),
    "one_hot": (lambda i: F.one_hot(i, 3), torch.tensor([1]), torch.tensor([9])),
    "binary_cross_entropy": (lambda p: F.binary_cross_entropy(p, torch.ones(3)), torch.rand(3), torch.full((3,), 2.0)),
    "integer division": (lambda n: torch.tensor([4]) // n, torch.tensor([2]), torch.tensor([0])),
    "multinomial": (lambda p: torch.multinomial(p, 1), torch.rand(3), -torch.rand(3)),
    "bernoulli": (torch.bernoulli, torch.rand(3), torch.rand(3) + 2),
}


@contextlib.contextmanager
def ignored(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds:
        return


@contextlib.contextmanager
def counted(log: list[str]) -> Iterator[None]:
    log.append("begin")
    try:
        yield
    finally:
        log.append("end")


class Ignoring:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return kind is not None and issubclass(kind, LinAlgError)


class Watching:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.seen.append(kind)


class Traced:
    """Not a tensor, but torch's functions ask it."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*(arg.value if isinstance(arg, cls) else arg for arg in args), **kwargs or {})


def _called(function: Any, *values: torch.Tensor) -> list[Any]:
    outcomes: list[Any] = []
    for value in values:
        try:
            outcomes.append(function(value))
        except Exception as error:
            outcomes += [type(error).__name__, str(error), str(error.__cause__)]
    return outcomes


@pytest.mark.parametrize("name", BY_VALUE)
def test_an_error_by_value_is_caught(name: str) -> None:
    op, good, bad = BY_VALUE[name]

    def step(compile: Compiler) -> Any:
        def function(value: torch.Tensor) -> torch.Tensor:
            try:
                result = op(value).double().sum()
            except (RuntimeError, IndexError):
                result = torch.tensor(7.0, dtype=torch.float64)
            return result + 1

        return _called(compile(function), good, bad, good, good, bad), torch.rand(1)

    check(step, allow_fallback=True)


def test_a_jitter_grows_until_the_matrix_is_positive() -> None:
    """What every Gaussian process does, with the gradient that goes through the attempt that succeeds."""

    def factor(matrix: torch.Tensor) -> torch.Tensor:
        jitter = 1e-3
        while True:
            try:
                return torch.linalg.cholesky(matrix + jitter * torch.eye(3))
            except LinAlgError:
                jitter *= 10

    def step(compile: Compiler) -> Any:
        results: list[Any] = []

        @compile
        def function(kernel: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            factored = factor(kernel * kernel - 2 * torch.eye(3))
            return torch.cholesky_solve(y, factored).square().sum()

        for scale in (3.0, 1.0, 0.5, 2.0):
            kernel = (scale * torch.eye(3) + 0.1).requires_grad_()
            loss = function(kernel, torch.ones(3, 1))
            loss.backward()
            results += [loss, kernel.grad]
        return results

    check(step, allow_fallback=True)


def test_what_is_raised_in_place_of_an_error_has_its_cause() -> None:
    def step(compile: Compiler) -> Any:
        @compile
        def function(matrix: torch.Tensor) -> torch.Tensor:
            try:
                return torch.linalg.inv(matrix)
            except LinAlgError as error:
                raise ValueError("no inverse") from error

        return _called(function, GOOD, torch.zeros(3, 3), GOOD)

    check(step)


@pytest.mark.parametrize(
    "context",
    [
        lambda log: contextlib.suppress(LinAlgError),
        lambda log: ignored(LinAlgError),
        lambda log: Ignoring(),
        lambda log: Watching(),
        lambda log: counted(log),
    ],
    ids=["suppress", "generator", "class", "watching", "finally"],
)
@pytest.mark.parametrize("writes", [False, True])
def test_a_with_sees_the_error(context: Any, writes: bool) -> None:
    def step(compile: Compiler) -> Any:
        log: list[str] = []
        buffer = torch.zeros(3)

        @compile
        def function(matrix: torch.Tensor) -> torch.Tensor:
            if writes:
                buffer.add_(1)
            result = matrix
            with context(log):
                result = torch.linalg.cholesky(matrix)
            return result + 1

        return _called(function, GOOD, BAD, GOOD, BAD), buffer

    check(step, allow_fallback=True)


def test_the_context_that_watches_has_seen_the_error() -> None:
    def step(compile: Compiler) -> Any:
        watching = Watching()

        @compile
        def function(matrix: torch.Tensor) -> torch.Tensor:
            with watching:
                return torch.linalg.cholesky(matrix)

        return _called(function, GOOD, BAD, GOOD), [kind and kind.__name__ for kind in watching.seen]

    check(step)


def test_a_graph_that_writes_is_left_to_python_inside_of_a_try() -> None:
    """It cannot run again; the reason is counted."""

    def step(compile: Compiler) -> Any:
        norm, embedding = nn.BatchNorm1d(2), nn.Embedding(3, 2)

        @compile
        def function(number: torch.Tensor) -> torch.Tensor:
            try:
                return norm(embedding(number)).sum()
            except IndexError:
                return number.sum().float()

        return _called(function, torch.tensor([1, 2]), torch.tensor([1, 7]), torch.tensor([2, 2])), norm.running_mean

    check(step, allow_fallback=True)
    gradc.reset()
    step(gradc.compile)
    assert gradc.counters["uncompiled"]["gradc: op that may raise inside of a try"] == 3


def test_around_a_function_with_a_try_all_else_is_compiled() -> None:
    """As where SOAP tries ``eigh``, and again in float64."""

    def attempt(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        try:
            return x[number]
        except IndexError:
            return x[:1]

    def step(compile: Compiler) -> Any:
        norm = nn.BatchNorm1d(2)

        @compile
        def function(number: torch.Tensor) -> torch.Tensor:
            return attempt(norm(torch.arange(6.0).view(3, 2)), number).sin() * 2

        return _called(function, torch.tensor([1]), torch.tensor([7]), torch.tensor([2])), norm.running_mean

    assert check(step, allow_fallback=True).num_graphs == 2


def test_a_finally_around_a_with_of_torchs_ends_no_error() -> None:
    norm, embedding, log = nn.BatchNorm1d(2), nn.Embedding(3, 2), []

    def function(number: torch.Tensor) -> torch.Tensor:
        try:
            with torch.no_grad(), Watching():
                return norm(embedding(number)).sum()
        finally:
            log.append(number.shape)

    compiled = gradc.compile(function, fullgraph=True)
    compiled(torch.tensor([1, 2]))
    with pytest.raises(IndexError):
        compiled(torch.tensor([1, 7]))


def test_a_graph_that_writes_stays_one_where_a_with_ends_no_error() -> None:
    """A timer's ``with`` around a step is no reason to compile less."""
    norm, embedding, log = nn.BatchNorm1d(2), nn.Embedding(3, 2), []

    @torch.autocast("cpu", torch.bfloat16)
    def inlined(number: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), Watching(), counted(log):
            return norm(embedding(number)).sum()

    def function(number: torch.Tensor) -> torch.Tensor:
        with counted(log), Watching(), torch.enable_grad():
            return inlined(number) + norm(embedding(number)).sum()

    gradc.reset()
    compiled = gradc.compile(function, fullgraph=True)
    compiled(torch.tensor([1, 2]))
    with pytest.raises(IndexError):
        compiled(torch.tensor([1, 7]))


def test_a_whole_step_inside_of_a_try() -> None:
    """As training loops have it, that leave out what fails."""

    def step(compile: Compiler) -> Any:
        model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        failed: list[str] = []

        @compile
        def train(number: torch.Tensor) -> torch.Tensor | None:
            optimizer.zero_grad()
            try:
                loss = F.cross_entropy(model(number), number % 2)
                loss.backward()
                optimizer.step()
            except IndexError as error:
                failed.append(str(error))
                return None
            return loss.detach()

        results = _called(train, *(torch.tensor([number]) for number in (1, 2, 7, 0, -1, 1)))
        return results, failed, list(model.parameters())

    check(step, allow_fallback=True)


def test_a_try_in_a_function_that_is_called_in_a_loop() -> None:
    def attempt(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        try:
            return x[number]
        except IndexError:
            return x[:1] * 0
        finally:
            x = x + 1

    def step(compile: Compiler) -> Any:
        @compile
        def function(numbers: torch.Tensor) -> torch.Tensor:
            x = torch.arange(3.0)
            return torch.cat([attempt(x, number) for number in numbers.split(1)])

        return _called(function, torch.tensor([0, 1]), torch.tensor([0, 4]), torch.tensor([5, 1]), torch.tensor([1, 1]))

    check(step, allow_fallback=True)


def test_draws_before_an_error_that_is_caught_happen_once() -> None:
    def step(compile: Compiler) -> Any:
        @compile
        def function(number: torch.Tensor) -> torch.Tensor:
            noise = torch.rand(3)
            try:
                noise = noise[number]
            except IndexError:
                noise = noise * torch.rand(3)
            return noise

        return _called(function, torch.tensor([1]), torch.tensor([9]), torch.tensor([1])), torch.rand(2)

    check(step, allow_fallback=True)


def test_variables_around_the_function_are_set() -> None:
    def step(compile: Compiler) -> Any:
        failures = 0

        @compile
        def function(number: torch.Tensor) -> torch.Tensor:
            nonlocal failures
            try:
                return torch.arange(3.0)[number]
            except IndexError:
                failures += 1
                return torch.zeros(1)

        return _called(function, torch.tensor([1]), torch.tensor([9]), torch.tensor([1]), torch.tensor([7])), failures

    check(step, allow_fallback=True)


def test_methods_and_defaults_and_resumed_functions() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(3.0))
            self.failures = 0

        def forward(self, number: torch.Tensor, *more: torch.Tensor, scale: float = 2.0, **options: Any) -> Any:
            x = self.weight * scale
            print(end="")
            torch._dynamo.graph_break()
            try:
                x = x[number] * options.get("factor", 1)
            except IndexError:
                self.failures += 1
                x = x.sum() + sum(each.sum() for each in more)
            torch._dynamo.graph_break()
            return x + 1

    def step(compile: Compiler) -> Any:
        model = Model()
        call = compile(model)
        results = []
        for number in (1, 9, 2, 8):
            result = call(torch.tensor([number]), torch.ones(2), torch.ones(1), factor=3, scale=1.5)
            result.sum().backward()
            results.append(result)
        return results, model.weight.grad, model.failures

    check(step, allow_fallback=True)


def test_a_try_inside_of_a_checkpoint() -> None:
    def attempt(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        try:
            return x.sin()[number]
        except IndexError:
            return x.cos()[:1]

    def step(compile: Compiler) -> Any:
        @compile
        def function(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
            return checkpoint(attempt, x * 2, number, use_reentrant=False) + 1

        results = []
        for number in (1, 9, 2):
            x = torch.arange(3.0, requires_grad=True)
            result = function(x, torch.tensor([number]))
            result.sum().backward()
            results += [result, x.grad]
        return results

    check(step, allow_fallback=True)


@pytest.mark.parametrize("is_caught", [True, False])
def test_what_torchs_functions_ask_is_asked_again(is_caught: bool) -> None:
    def step(compile: Compiler) -> Any:
        @compile
        def function(number: torch.Tensor) -> torch.Tensor:
            total = torch.add(Traced(torch.arange(3.0)), 1.5)
            try:
                return total[number]
            except IndexError:
                if not is_caught:
                    raise
                return total

        return _called(function, torch.tensor([1]), torch.tensor([7]), torch.tensor([2]))

    check(step, allow_fallback=is_caught)


def test_torch_compile_with_gradc_behind_it() -> None:
    @torch.compile(backend="gradc")
    def function(matrix: torch.Tensor) -> torch.Tensor:
        try:
            return torch.linalg.cholesky(matrix)
        except LinAlgError:
            return matrix * 0

    assert [function(matrix).trace().item() for matrix in (GOOD, GOOD, BAD, GOOD)] == [3, 3, 0, 3]
