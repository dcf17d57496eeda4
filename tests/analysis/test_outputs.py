"""What each output of a region is: a constant, an input itself, a value, or an alias, and what the Program must return."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradc.analysis.outputs import (
    AliasOfInput,
    AliasOfIntermediate,
    AliasUsedInside,
    Constant,
    InputItself,
    Output,
    Outputs,
    Value,
)
from gradc.errors import UnsupportedError
from tests.analysis.taped import names_of, taped


def leaf(*shape: int) -> Tensor:
    return torch.ones(shape, requires_grad=True)


def kinds(outputs: Outputs) -> list[type[Output]]:
    return [type(kind) for kind in outputs.kinds]


def test_constants() -> None:
    outputs = taped(lambda x: (1, None, x.shape[0], "a"), leaf(3)).outputs
    assert outputs.kinds == (Constant(1), Constant(None), Constant(3), Constant("a")) and outputs.values == ()


def test_inputs_themselves() -> None:
    outputs = taped(lambda x, y: (y, x, y), leaf(3), torch.ones(3)).outputs
    assert outputs.kinds == (InputItself(1), InputItself(0), InputItself(1)) and outputs.values == ()


def test_values_and_their_edges() -> None:
    outputs = taped(lambda x: (y := x.sin(), y.detach() * 2, y), leaf(3)).outputs
    first, second, third = outputs.kinds
    assert first is third and (first, second) == (Value(0), Value(1))
    assert [edge is None for _, edge in outputs.values] == [False, True]
    assert outputs.edges == (outputs.values[0][1],)


def test_a_view_of_an_input_is_made_of_it_again() -> None:
    x = leaf(2, 3)
    (kind,) = taped(lambda x: x.t()[1:], x).outputs.kinds
    assert isinstance(kind, AliasOfInput) and kind.base == InputItself(0)
    again = kind.make(x)
    assert again.shape == (2, 2) and again.data_ptr() == x.t()[1:].data_ptr() and again._is_view()


def test_a_view_of_an_output_is_made_of_it_again() -> None:
    outputs = taped(lambda x: (y := x.sin(), y.view(-1)), leaf(2, 3)).outputs
    assert kinds(outputs) == [Value, AliasOfIntermediate]
    view = outputs.kinds[1]
    assert isinstance(view, AliasOfIntermediate) and view.base == Value(0) and view.requires_grad
    assert names_of(outputs.nodes_of_views[1]) == ["View"] and names_of(outputs.made_between) == ["View"]
    assert len(outputs.values) == 1


def test_a_view_of_what_only_it_shows() -> None:
    """Nobody uses its base but for it: it may as well be a view. The Program returns the base."""
    outputs = taped(lambda x: x.sin().view(-1), leaf(2, 3)).outputs
    assert kinds(outputs) == [AliasOfIntermediate] and outputs.values[0][0].shape == (2, 3)


def test_a_view_that_the_region_uses_itself() -> None:
    outputs = taped(lambda x: (view := x.sin().view(-1), view.exp()), leaf(2, 3)).outputs
    assert kinds(outputs) == [AliasUsedInside, Value]
    assert [value.shape for value, _ in outputs.values] == [(2, 3), (6,), (6,)]


def test_two_views_of_one_hidden_value_share_its_storage() -> None:
    outputs = taped(lambda x: (y := x.sin(), (y[0], y[1]))[1], leaf(2, 3)).outputs
    assert kinds(outputs) == [AliasOfIntermediate, AliasOfIntermediate] and len(outputs.values) == 1


def test_a_view_that_does_not_record() -> None:
    outputs = taped(lambda x: (y := x.sin(), y.detach().view(-1)), leaf(2, 3)).outputs
    view = outputs.kinds[1]
    assert isinstance(view, AliasOfIntermediate) and not view.requires_grad and outputs.nodes_of_views == {}


def between_uses(x: Tensor) -> tuple[Tensor, ...]:
    y = x.sin()
    first = y.exp()
    return y, y.view(-1), y.cos(), first, y.tanh()


def test_a_view_between_other_uses_is_refused() -> None:
    """It is made again behind the segments, and so would send its gradient before those of the later uses."""
    with pytest.raises(UnsupportedError, match="view of an intermediate that has other uses after it"):
        taped(between_uses, leaf(2, 3))


def test_a_view_of_a_returned_view_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="view of a view, both returned"):
        taped(lambda x: (view := x.sin().view(-1), view[1:]), leaf(2, 3))
