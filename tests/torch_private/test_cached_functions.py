"""Functions in a ``functools.lru_cache``: what the cache has is taken while tracing, and asked for again at each call."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradc
from tests.oracle import check, leaf

NUM_CALLS = 4
Program = Callable[[Any, torch.Tensor], Any]


@dataclasses.dataclass(eq=False)
class Recipe:
    """As libraries make of a pattern: an object that is a key of the next cache."""

    axes: list[int]
    scale: float


def recipes() -> tuple[Callable[[str], Recipe], Callable[[Recipe, tuple[int, ...]], tuple[list[int], float]]]:
    """The caches of a library that parses patterns, warm: as in a program that has run in eager before."""

    @functools.lru_cache(8)
    def recipe(pattern: str) -> Recipe:
        return Recipe([pattern.index(axis) for axis in "ab"], 0.5)

    @functools.lru_cache(8)
    def shape_of(recipe: Recipe, shape: tuple[int, ...]) -> tuple[list[int], float]:
        return [shape[axis] for axis in recipe.axes], recipe.scale

    shape_of(recipe("ba"), torch.Size([3, 4]))
    shape_of(recipe("ab"), (3, 4))
    return recipe, shape_of


def num_graphs_of(program: Program) -> int:
    torch._dynamo.reset()
    gradc.counters.clear()
    program(gradc.compile, torch.ones(3, 4, requires_grad=True))
    assert not gradc.counters["uncompiled"], gradc.counters["uncompiled"]
    return int(gradc.counters["stats"]["unique_graphs"])


def of_a_library_that_parses_patterns(compile: Any, x: torch.Tensor) -> Any:
    recipe, shape_of = recipes()

    def rearrange(x: torch.Tensor, pattern: str) -> torch.Tensor:
        shape, scale = shape_of(recipe(pattern), x.shape)
        return x.sin().reshape(shape) * scale

    run = compile(lambda x: rearrange(x.cos(), "ba").sin())
    results = [run(x) for _ in range(NUM_CALLS)]
    results[-1].sum().backward()
    return results


def of_numbers(compile: Any, x: torch.Tensor) -> Any:
    @functools.cache
    def table(number: int, *, base: int) -> tuple[float, ...]:
        return tuple(math.sqrt(i + base) for i in range(number))

    run = compile(lambda x: (x.sin() * table(3, base=2)[1]).cos() * table(2, base=1)[0])
    return [run(x) for _ in range(NUM_CALLS)], tuple(table.cache_info())


@pytest.mark.parametrize("program", [of_a_library_that_parses_patterns, of_numbers])
def test_one_graph(program: Program) -> None:
    check(program, leaf(3, 4))
    assert num_graphs_of(program) == 1


def test_another_argument_is_another_answer() -> None:
    recipe, shape_of = recipes()

    def step(compile: Any, x: torch.Tensor) -> Any:
        run = compile(lambda x, pattern: x.sin().reshape(shape_of(recipe(pattern), x.shape)[0]))
        return [run(x, pattern) for pattern in ("ba", "ab", "ba", "ab")]

    check(step, leaf(3, 4))


def test_another_function_in_its_place() -> None:
    class Place:
        table = functools.cache(lambda n: (n * 2.0,))

    def step(compile: Any, x: torch.Tensor) -> Any:
        Place.table = staticmethod(functools.cache(lambda n: (n * 2.0,)))
        run, results = compile(lambda x: x.sin() * Place.table(3)[0]), []
        for factor in (5.0, 7.0):
            results += [run(x), run(x)]
            Place.table = staticmethod(functools.cache(functools.partial(lambda factor, n: (n * factor,), factor)))
        return [*results, run(x)]

    check(step, leaf(3), allow_fallback=True)


def test_a_cache_that_is_emptied() -> None:
    """What is inside reads another number then. Python calls it, and its answer is taken until it is thrown out."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        state, calls = {"scale": 2.0}, []

        @functools.cache
        def scale(number: int) -> list[float]:
            calls.append(number)
            return [state["scale"] * number]

        run, results = compile(lambda x: x.sin() * scale(3)[0] + x), []
        scale(3)
        for new in (3.0, 4.0, 5.0):
            results += [run(x), run(x), list(calls)]
            state["scale"] = new
            results.append(run(x))
            scale.cache_clear()
        return results

    check(step, leaf(3), allow_fallback=True)


def test_a_bounded_cache_that_throws_out() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        calls: list[int] = []

        @functools.lru_cache(2)
        def scale(number: int) -> float:
            calls.append(number)
            return number * 0.5

        run, results = compile(lambda x: x.sin() * scale(1)), []
        scale(1)
        for number in (2, 3, 2, 4):
            results += [run(x), list(calls)]
            scale(number)
            results += [run(x), list(calls)]
        return results

    check(step, leaf(3), allow_fallback=True)


def test_what_is_written_into_an_answer_stays_there() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        @functools.cache
        def numbers(number: int) -> list[float]:
            return [float(number)]

        def function(x: torch.Tensor) -> torch.Tensor:
            found = numbers(2)
            found.append(found[-1] + 1)
            return x.sin() * found[-1]

        run = compile(function)
        return [run(x) for _ in range(NUM_CALLS)], numbers(2)

    check(step, leaf(3), allow_fallback=True)


def test_effects_of_what_is_cached_come_in_their_order() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        events: list[str] = []

        @functools.cache
        def size(number: int) -> int:
            events.append("asked")
            return number * 2

        def function(x: torch.Tensor) -> torch.Tensor:
            events.append("before")
            return x.sin() * size(3)

        run = compile(function)
        return [run(x) for _ in range(NUM_CALLS)], events

    check(step, leaf(3), allow_fallback=True)


def test_what_is_cached_reads_what_was_written_before() -> None:
    """Traced, the write takes effect after the graph."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        options = {"scale": 1.0}

        @functools.cache
        def scale(number: int) -> float:
            return options["scale"] * number

        def function(x: torch.Tensor) -> torch.Tensor:
            options["scale"] = 7.0
            return x.sin() * scale(3)

        run = compile(function)
        return [run(x) for _ in range(NUM_CALLS)]

    check(step, leaf(3), allow_fallback=True)


offset = 1.0


@functools.cache
def with_the_offset(number: int) -> float:
    return number + offset


def test_what_is_cached_reads_a_global_that_was_written_before() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        global offset
        offset = 5.0
        return x.sin() * with_the_offset(3)

    def step(compile: Any, x: torch.Tensor) -> Any:
        global offset
        offset = 1.0
        with_the_offset.cache_clear()
        run = compile(function)
        return [run(x) for _ in range(NUM_CALLS)]

    check(step, leaf(3), allow_fallback=True)


def test_an_argument_without_a_hash_raises() -> None:
    @functools.cache
    def size(number: Any) -> int:
        return 2

    def step(compile: Any, x: torch.Tensor) -> Any:
        def function(x: torch.Tensor) -> Any:
            try:
                return x.sin() * size([3])
            except TypeError as error:
                return x.cos(), str(error)

        run = compile(function)
        return [run(x) for _ in range(NUM_CALLS)]

    check(step, leaf(3), allow_fallback=True)


def test_what_is_cached_raises() -> None:
    @functools.cache
    def size(number: int) -> int:
        return divmod(number, 0)[0]

    def step(compile: Any, x: torch.Tensor) -> Any:
        def function(x: torch.Tensor) -> Any:
            try:
                return x.sin() * size(3)
            except ZeroDivisionError as error:
                return x.cos(), str(error)

        run = compile(function)
        return [run(x) for _ in range(NUM_CALLS)]

    check(step, leaf(3), allow_fallback=True)


def test_one_entry_for_equal_arguments() -> None:
    """1 and True are one key, unless the cache tells types apart."""

    def step(compile: Any, x: torch.Tensor, typed: bool) -> Any:
        same = functools.lru_cache(8, typed=typed)(lambda value: (value, str(value)))
        same(True)

        def function(x: torch.Tensor) -> Any:
            return x.sin() * same(1)[0], same(1)[1], same(1.0)[1], same((1, 2))[1]

        run = compile(function)
        return [run(x) for _ in range(NUM_CALLS)]

    for typed in (False, True):
        check(functools.partial(step, typed=typed), leaf(3), allow_fallback=True)


def test_a_cache_of_tensors_is_called_by_python() -> None:
    @functools.cache
    def mask(number: int) -> tuple[torch.Tensor]:
        return (torch.ones(number),)

    mask(3)
    torch._dynamo.reset()
    gradc.counters.clear()
    run = gradc.compile(lambda x: x.sin() * mask(3)[0])
    run(torch.ones(3))
    assert gradc.counters["uncompiled"]["gradc: functools.lru_cache"] == 1


def test_sizes_that_change() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        @functools.cache
        def half(number: int) -> int:
            return number // 2

        run = compile(lambda x: x.sin()[: half(x.shape[0])] * 2)
        return [run(x[:size]) for size in (4, 6, 8, 6, 10, 4)]

    check(step, leaf(12, 2), allow_fallback=True)


def test_how_often_a_cache_was_asked_where_tracing_begins_again() -> None:
    """A graph that ends is traced twice, and Dynamo asks its guards twice; a graph that does not fit asks nothing."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        @functools.lru_cache(2)
        def table(number: int) -> float:
            return number * 1.5

        def function(x: torch.Tensor, n: int, a: float = 0.5) -> Any:
            y = x * table(abs(n - 3)) + table(n)
            pairs = [("b", 1 - a), ("a", 2.0)]
            pairs.sort(key=lambda pair: pair[1])
            return x * float((y * pairs[0][1]).detach().mean())

        run, seen = compile(function), []
        for argument, n, a in ((x, 3, 0.5), (x.detach(), 3, -0.25), (x, 4, -0.25), (x, 3, 0.5)):
            seen.append((run(argument, n, a), tuple(table.cache_info())))
        return seen

    check(step, leaf(3))


def test_how_often_a_cache_was_asked_where_something_else_has_changed() -> None:
    """The one guard then asks all others, and each cache once; a cache of a graph that does not fit any longer, never."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        @functools.lru_cache(2)
        def table(number: int) -> float:
            return number * 1.5

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))

        def function(x: torch.Tensor, flag: bool) -> Any:
            y = model(x * table(2) + table(2))
            return y * table(1) if flag else y

        run, seen = compile(function), []
        for flag in (False, False, True, False):
            model[0].note = flag
            model[1].register_buffer("kept", torch.ones(1))
            seen.append((run(x, flag), tuple(table.cache_info())))
            seen.append((run(x.detach(), flag), tuple(table.cache_info())))
        return seen

    check(step, leaf(2, 3))


def behind_an_error_that_a_with_has_ended(compile: Any, x: torch.Tensor) -> Any:
    @functools.lru_cache(2)
    def table(number: int) -> float:
        return number * 1.5

    def ends_an_error(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(IndexError):
            x = x[index]
        return x * table(1)

    run = compile(ends_an_error)
    return [(run(x, torch.tensor([i])), tuple(table.cache_info())) for i in (0, 9, 1, 9)]


def before_an_error_that_a_try_ends(compile: Any, x: torch.Tensor) -> Any:
    @functools.lru_cache(2)
    def table(number: int) -> float:
        return number * 1.5

    def ends_an_error(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        x = x * table(1)
        try:
            return x[index]
        except IndexError:
            return x

    table(1)
    run = compile(ends_an_error)
    return [(run(x, torch.tensor([i])), tuple(table.cache_info())) for i in (0, 9, 1, 9)]


@pytest.mark.parametrize("program", [behind_an_error_that_a_with_has_ended, before_an_error_that_a_try_ends])
def test_a_cache_counts_once_where_a_frame_would_run_again(program: Program) -> None:
    check(program, leaf(3, 4), allow_fallback=True)
