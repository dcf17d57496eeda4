"""What compiled code does beside computing is what eager does: caches, containers, attributes, warnings, references.

Each program is a function that makes what it works on and returns (what is compiled, what is to be seen afterwards).
"""

from __future__ import annotations

import collections
import contextlib
import functools
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import gradc
from tests.oracle import check, constant, leaf

NUM_CALLS = 4
Program = Callable[[], tuple[Callable[[torch.Tensor], Any], Callable[[], Any]]]


@pytest.fixture(autouse=True)
def with_caches() -> Iterator[None]:
    """Without, as a benchmark may have left it, Dynamo warns of that where it compiles first."""
    with torch.compiler.config.patch(force_disable_caches=False):
        yield


def nothing() -> None:
    return None


def step(compile: Any, program: Program, x: torch.Tensor) -> Any:
    function, look = program()
    run, results, seen = compile(function), [], []
    for _ in range(NUM_CALLS):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            results.append(run(x))
        seen += [str(warning.message).split("\n")[0] for warning in warned] + [look()]
        for value in torch.utils._pytree.tree_leaves(results[-1]):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                value.sum().backward(retain_graph=True)
    return results, seen


def a_deque_that_throws_out() -> Any:
    last: collections.deque[torch.Tensor] = collections.deque(maxlen=2)

    def function(x: torch.Tensor) -> Any:
        last.append(x.sin())
        return sum(last), len(last)

    return function, lambda: list(last)


def a_deque_made_inside() -> Any:
    def function(x: torch.Tensor) -> Any:
        last: collections.deque[torch.Tensor] = collections.deque(maxlen=2)
        for number in range(4):
            last.append(x * number)
        last.appendleft(x.cos())
        return list(last), last.maxlen

    return function, nothing


def a_cache_of_tensors() -> Any:
    @functools.cache
    def ones(number: int) -> torch.Tensor:
        return torch.ones(number)

    def function(x: torch.Tensor) -> Any:
        ones(4).add_(1)
        return x * ones(4), ones(4) is ones(4)

    return function, lambda: tuple(ones.cache_info())


def a_cache_of_a_method() -> Any:
    calls: list[int] = []

    class Table:
        @functools.lru_cache  # noqa: B019
        def row(self, number: int) -> int:
            calls.append(number)
            return number * 2

    table = Table()
    return lambda x: x * table.row(3) + table.row(3), lambda: (list(calls), tuple(Table.row.cache_info()))


def a_cache_of_what_is_installed() -> Any:
    calls: list[str] = []

    @functools.cache
    def is_installed(name: str) -> bool:
        calls.append(name)
        return name == "torch"

    return lambda x: x.sin() if is_installed("torch") else x.cos(), lambda: list(calls)


def an_ordered_dictionary() -> Any:
    order: collections.OrderedDict[str, int] = collections.OrderedDict(a=1, b=2)

    def function(x: torch.Tensor) -> Any:
        order.move_to_end("a")
        return x.sin(), list(order)

    return function, lambda: list(order)


def an_attribute_of_the_function() -> Any:
    def function(x: torch.Tensor) -> Any:
        function.calls = getattr(function, "calls", 0) + 1
        return x * function.calls

    return function, lambda: function.calls


def an_attribute_in_a_dictionary() -> Any:
    class Counter:
        def __getattr__(self, name: str) -> float:
            self.__dict__.setdefault("asked", []).append(name)
            return 2.0

    counter = Counter()

    def function(x: torch.Tensor) -> Any:
        calls = counter.__dict__.get("calls", 0)
        counter.calls = calls + 1
        return x * calls * counter.factor

    return function, lambda: dict(counter.__dict__)


def a_weak_reference() -> Any:
    def function(x: torch.Tensor) -> Any:
        hidden = x.sin()
        reference, result = weakref.ref(hidden), hidden.sum()
        del hidden
        return result, reference() is None

    return function, nothing


def the_version_of_a_result() -> Any:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        before = y._version
        y.add_(1)
        between = y._version
        y[0] = 3
        z = y.view(2, 2)
        z.mul_(2)
        return y, before, between, y._version, z._version

    return function, nothing


def the_version_of_a_buffer() -> Any:
    buffer = torch.zeros(4)

    def function(x: torch.Tensor) -> Any:
        before = buffer._version
        if before > 2:
            return x.sin(), before
        buffer.add_(1)
        return x * buffer.sum(), buffer._version - before

    return function, lambda: buffer._version


def the_name_of_a_node() -> Any:
    def function(x: torch.Tensor) -> Any:
        y = (x * 2).sin()
        if y.grad_fn is not None and "Sin" in type(y.grad_fn).__name__:
            return y * 2, type(y.grad_fn.next_functions[0][0]).__name__
        return y * 3, y.grad_fn.name()

    return function, nothing


def whether_there_is_a_node() -> Any:
    def function(x: torch.Tensor) -> Any:
        y = x.sin()
        if y.grad_fn is None:
            return y
        return y * (4 if x.grad_fn is not None else 5), y.is_leaf, x.is_leaf, y.detach().is_leaf

    return function, nothing


def the_grad_of_a_result() -> Any:
    def function(x: torch.Tensor) -> Any:
        y = x.sin()
        return y.cos(), y.grad

    return function, nothing


def addresses() -> Any:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y.view(2, 2).data_ptr() == y.data_ptr(), y[1:].data_ptr() - y.data_ptr(), id(x) == id(x), id(y) == id(x)

    return function, nothing


def identities() -> Any:
    seen: dict[int, torch.Tensor] = {}

    def function(x: torch.Tensor) -> Any:
        if id(x) not in seen:
            seen[id(x)] = x.detach() * 2
        return x * seen[id(x)]

    return function, lambda: len(seen)


def the_time() -> Any:
    times: list[float] = []

    def function(x: torch.Tensor) -> Any:
        times.append(time.time())
        hidden = x.sin()
        times.append(time.perf_counter())
        return hidden

    return function, lambda: (len(times), len(set(times)))


def a_warning_of_the_users() -> Any:
    def function(x: torch.Tensor) -> Any:
        warnings.warn("hello", stacklevel=2)
        return x.sin()

    return function, nothing


def a_warning_of_torchs() -> Any:
    return lambda x: F.mse_loss(x.sin(), torch.zeros(1)), nothing


def a_warning_in_python_of_torchs() -> Any:
    return lambda x: F.softmax(x.sin()).cos(), nothing


def an_index_error_that_is_caught() -> Any:
    def function(x: torch.Tensor) -> Any:
        try:
            x[10]
        except IndexError as error:
            return x.sin(), str(error)

    return function, nothing


def ops_that_round_once() -> Any:
    a, b, c = torch.rand(3, 1000) + 0.5

    def function(x: torch.Tensor) -> Any:
        inplace = a.clone().addcmul_(b, c, value=0.3), a.clone().addcdiv_(b, c, value=0.3), a.clone().add_(b, alpha=0.3)
        lists = torch._foreach_pow(0.9, [a, b]), torch._foreach_lerp([a], [b], 0.3)
        return x * 2, inplace, torch.addcdiv(a, b, c, value=0.3), lists

    return function, nothing


def a_step_in_place_by_a_tensor() -> Any:
    a, b = torch.rand(2, 1000)
    return lambda x: (x * 2, a.clone().add_(b, alpha=x.detach()[1])), nothing


def full_of_a_tensor_that_requires_grad() -> Any:
    def function(x: torch.Tensor) -> Any:
        try:
            return torch.full((3,), x.sum()), ""
        except TypeError as error:
            return x.sin(), str(error)

    return function, nothing


def data_that_is_written_into() -> Any:
    weight = torch.ones(4)

    def function(x: torch.Tensor) -> Any:
        weight.data.mul_(2)
        y = x * 2
        y.data.add_(1)
        return x * weight, y.sin(), y._version

    return function, lambda: weight._version


def the_greater_of_equals() -> Any:
    def function(x: torch.Tensor) -> Any:
        a, b = x.sum(), x.sum()
        return max(a, b) is a, min(b, a) is b, (max(a, b) * 2).sin()

    return function, nothing


def the_greater_of_a_number_and_a_tensor() -> Any:
    def function(x: torch.Tensor) -> Any:
        a, whole = x.sum(), torch.tensor(3)
        return max(a, 100.0), min(a, 0.1), max(whole, 2.5), max(whole, 5), x * 2

    return function, nothing


def the_greater_of_nan() -> Any:
    def function(x: torch.Tensor) -> Any:
        a = x.sum()
        nan = a * float("nan")
        return max(a, nan), max(nan, a), min(a, nan), max([a, nan, a])

    return function, nothing


def a_tensor_in_a_list() -> Any:
    return lambda x: (x.sin(), x in [x], any(x is y for y in [x])), nothing


def the_order_of_sets() -> Any:
    def function(x: torch.Tensor) -> Any:
        words = {"q", "w", "e", "r"}
        words.add("z")
        words.discard("q")
        return (
            x * 2,
            list(words),
            list(words | {"y"}),
            list(frozenset("hello")),
            ",".join(set("abc")),
            sorted(words),
        )

    return function, nothing


def whether_made_in_inference_mode() -> Any:
    def function(x: torch.Tensor) -> Any:
        with torch.inference_mode():
            y = x * 2
            is_inference = y.is_inference()
        return x.sin(), is_inference, y.is_inference()

    return function, nothing


# pytest writes the assertions of this file anew; not those of a text
ASSERTS = """
def function(x):
    hidden = x.sin()
    assert hidden.sum() > 1000, "too small"
    return hidden.cos()
"""


PROGRAMS = [
    a_deque_that_throws_out,
    a_deque_made_inside,
    a_cache_of_tensors,
    a_cache_of_a_method,
    a_cache_of_what_is_installed,
    an_ordered_dictionary,
    an_attribute_of_the_function,
    an_attribute_in_a_dictionary,
    a_weak_reference,
    the_version_of_a_result,
    the_version_of_a_buffer,
    the_name_of_a_node,
    whether_there_is_a_node,
    the_grad_of_a_result,
    addresses,
    identities,
    the_time,
    a_warning_of_the_users,
    a_warning_of_torchs,
    a_warning_in_python_of_torchs,
    an_index_error_that_is_caught,
    ops_that_round_once,
    a_step_in_place_by_a_tensor,
    full_of_a_tensor_that_requires_grad,
    data_that_is_written_into,
    the_greater_of_equals,
    the_greater_of_a_number_and_a_tensor,
    the_greater_of_nan,
    a_tensor_in_a_list,
    the_order_of_sets,
    whether_made_in_inference_mode,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_seen_is_what_eager_shows(program: Program) -> None:
    check(step, lambda: program, leaf(4), allow_fallback=True)


def test_an_assertion_about_a_tensor_raises() -> None:
    names: dict[str, Any] = {}
    exec(ASSERTS, names)
    torch._dynamo.reset()
    with pytest.raises(AssertionError, match="too small"):
        gradc.compile(names["function"])(torch.ones(4, requires_grad=True))


def test_what_is_installed_ends_no_graph() -> None:
    for program in (a_cache_of_what_is_installed, whether_there_is_a_node):
        function, _ = program()
        torch._dynamo.reset()
        gradc.compile(function, fullgraph=True)(torch.ones(4, requires_grad=True))


def test_dynamo_does_not_warn_of_what_it_cannot_trace() -> None:
    torch._dynamo.reset()
    run = gradc.compile(lambda x: (x.sin(), time.monotonic()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(torch.ones(4))


ENDS = {"tensor": lambda x: x.sum() > 0, "list": lambda x: [], "item": lambda x: (x.sum() > 0).item()}


@pytest.mark.parametrize("name", ["move_to_end", "popitem"])
@pytest.mark.parametrize("last", ENDS.values(), ids=ENDS)
def test_an_end_of_a_dictionary_that_hangs_on_a_value(name, last):
    """Dynamo took the last one, whatever it was."""

    def calls(compile, x):
        def function(order, x):
            taken = getattr(order, name)(*["first"] * (name == "move_to_end"), last=last(x))
            return x * next(iter(order.values())), taken

        orders = [collections.OrderedDict(first=1.5, second=0.5, third=2.0) for _ in range(4)]
        run = compile(function)
        return [run(order, factor * x) for order, factor in zip(orders, (1, -1, 1, -1))], [[*order.items()] for order in orders]

    check(calls, constant(2))


@pytest.mark.parametrize("item", [lambda x: x.sum(), lambda x: 2, lambda x: x], ids=["tensor", "number", "no truth"])
@pytest.mark.parametrize("kind", [list, tuple])
def test_how_often_there_is_a_tensor(item, kind):
    """Dynamo added up what ``==`` gives: a tensor, and where Python raises that it is no truth nothing was raised."""

    def calls(compile, x):
        run, found = compile(lambda x: (kind([x.sum(), 2, x * 1]).count(item(x)), x * 2)), []
        for factor in (1, -1, 1):
            with contextlib.suppress(RuntimeError):
                found.append(run(factor * x))
        return found, len(found)

    check(calls, constant(2))
