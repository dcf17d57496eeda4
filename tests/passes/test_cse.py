"""What is made twice is one value: only where nobody can tell, and never with more memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradc.executor.core import interpret
from gradc.ir.program import Program
from gradc.ir.values import Ref
from gradc.ir.verify import verify
from gradc.passes.cse import cse
from tests.ir.build import ops, recorded

aten = torch.ops.aten
X, Y = torch.randn(3, 3), torch.randn(3, 3)


def merged(function: Callable[..., Any], *inputs: torch.Tensor, num_apart: int = 0) -> Program:
    """``function`` recorded and merged; its first outputs are the user's. What it makes is still the same."""
    program = recorded(function, *inputs)
    apart = [out.slot for out in program.outputs[:num_apart] if isinstance(out, Ref)]
    made = cse(program, apart)
    verify(made)
    results = [interpret.lower(one)([value.clone() for value in inputs]) for one in (program, made)]
    for before, after in zip(*results, strict=True):
        assert before.stride() == after.stride() and before.tolist() == after.tolist()
    assert len({id(value) for value in results[1]}) == len(results[1])
    return made


def names(function: Callable[..., Any], *inputs: torch.Tensor, num_apart: int = 0) -> list[str]:
    return ops(merged(function, *(inputs or (X, Y)), num_apart=num_apart))


def test_the_same_call_is_made_once():
    assert names(lambda x, y: (x @ y).tanh() + (x @ y).tanh()) == ["mm", "tanh", "add"]


def test_what_is_read_through_equal_views_is_equal():
    def by_views(x, y):
        first = x.t()[0].exp()
        return first, x.t()[0].exp() + first

    assert names(by_views).count("exp") == 1


def test_outputs_are_objects_of_their_own():
    made = merged(lambda x, y: (x.exp(), x.exp()), X, Y)
    assert ops(made) == ["exp", "detach"]
    assert len({out.slot for out in made.outputs if isinstance(out, Ref)}) == 2


def test_what_the_user_gets_is_made_by_itself():
    assert names(lambda x, y: (x.exp(), x.exp()), num_apart=1) == ["exp", "exp"]
    assert names(lambda x, y: (x.exp(), x.exp()), num_apart=2) == ["exp", "exp"]
    assert names(lambda x, y: (x.exp().t(), x.exp()), num_apart=1) == ["exp", "t", "exp"]


@pytest.mark.parametrize("one, other", [(1, 1.0), (1, True), (0.0, -0.0), (2, 3)])
def test_numbers_that_are_not_the_same(one, other):
    assert names(lambda x, y: (x.add(one), x.add(other))).count("add") == 2
    assert names(lambda x, y: (x.add(one), x.add(one))) == ["add", "detach"]


def test_keyword_arguments_count():
    assert names(lambda x, y: (torch.add(x, y), torch.add(x, y, alpha=2))) == ["add", "add"]


def test_nothing_lives_longer_for_it():
    """What is dead where it is made again is made again: eager's memory is the bound."""

    def late(x, y):
        early = x.exp().sum()
        middle = (x @ y).sum()
        return early, middle, x.exp().mean()

    assert names(late) == ["exp", "sum", "mm", "sum", "exp", "mean"]


def test_what_only_fed_something_merged_goes_with_it():
    """The second exp is made again, as the first is dead; but its sine is there, and nobody needs it any more."""
    assert names(lambda x, y: (x.exp().sin(), x.exp().sin())) == ["exp", "sin", "detach"]


def masked(x):
    return torch.empty_like(x).fill_(1).bernoulli_()


@pytest.mark.parametrize("make", [torch.rand_like, lambda x: torch.dropout(x, 0.5, True), masked])
def test_random_numbers_are_drawn_each_time(make):
    program = recorded(lambda x: (make(x), make(x)), X)
    assert cse(program, ()) is program


def test_running_statistics_are_updated_each_time():
    mean, variance = torch.zeros(3), torch.ones(3)

    def twice(x, mean, variance):
        return tuple(torch.native_batch_norm(x, None, None, mean, variance, True, 0.1, 1e-5)[0] for _ in range(2))

    assert names(twice, X, mean, variance) == ["native_batch_norm", "native_batch_norm"]


def test_uninitialized_memory_is_not_the_same():
    assert names(lambda x, y: (torch.empty_like(x).fill_(0), torch.empty_like(x).fill_(1))).count("empty_like") == 2


def test_what_is_made_in_place_is_a_value_when_it_is_finished():
    def one_minus(x):
        return aten.empty_like(x).fill_(1.0).sub_(x)

    assert names(lambda x, y: (one_minus(x), one_minus(x))) == ["empty_like", "fill_", "sub_", "detach"]
    assert names(lambda x, y: (one_minus(x), one_minus(y))).count("sub_") == 2


def test_half_made_it_is_another():
    def read_between(x, y):
        first = aten.empty_like(x).fill_(1.0)
        seen = first.exp()
        return first.sub_(x), seen, aten.empty_like(x).fill_(1.0).sub_(x)

    assert names(read_between).count("sub_") == 2


def writes_between(x, y):
    first = x.exp()
    x.add_(1)
    return first, x.exp()


def writes_into_a_view_between(x, y):
    first = x.exp()
    x[0].add_(1)
    return first, x.exp()


def writes_into_the_first(x, y):
    first = x.exp()
    first.add_(1)
    return first, x.exp()


def writes_into_a_view_of_the_first(x, y):
    first = x.exp()
    first[0].add_(1)
    return first, x.exp()


def writes_into_the_second(x, y):
    first, second = x.exp(), x.exp()
    second.add_(1)
    return first, second


def writes_into_another_input(x, y):
    """Which may be the same memory in another call."""
    first = x.exp()
    y.add_(1)
    return first, x.exp()


def writes_into_what_may_be_an_input(x, y):
    """``contiguous`` and the like return their argument as it is, and no schema says so."""
    first = x.exp()
    aten.conj_physical(x).add_(1)
    return first, x.exp()


def reads_what_may_be_written(x, y):
    same = aten.conj_physical(x)
    first = same.exp()
    x.add_(1)
    return first, same.exp()


@pytest.mark.parametrize(
    "function",
    [
        writes_between,
        writes_into_a_view_between,
        writes_into_the_first,
        writes_into_a_view_of_the_first,
        writes_into_the_second,
        writes_into_another_input,
        writes_into_what_may_be_an_input,
        reads_what_may_be_written,
    ],
)
def test_nothing_that_is_written_into_is_shared(function):
    assert names(function).count("exp") == 2


def test_what_an_op_of_the_users_reads_is_its_own():
    """It may keep it, and its code may write into it later."""

    @torch.library.custom_op("gradc_test_repeats::look", mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    look.register_fake(torch.empty_like)
    assert names(lambda x, y: (x.exp(), look(x.exp()))).count("exp") == 2


def test_of_several_results_all_are_there():
    def norms(x, y):
        first = torch.native_layer_norm(x, [3], None, None, 1e-5)
        again = torch.native_layer_norm(x, [3], None, None, 1e-5)
        return *first, again[0] + again[1] + again[2]

    assert names(norms).count("native_layer_norm") == 1
    assert names(norms, X, Y, num_apart=2).count("native_layer_norm") == 2
