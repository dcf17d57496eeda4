"""Where a tape is cut: which nodes are of one segment, where gradients come in, and where they leave, in which order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradc.analysis.segments import Segment
from gradc.errors import UnsupportedError
from tests.analysis.taped import names_of, taped


def leaf(*shape: int) -> Tensor:
    return torch.ones(shape, requires_grad=True)


def cuts(segments: tuple[Segment, ...]) -> list[list[str]]:
    return [names_of(segment.nodes) for segment in segments]


def ends(segment: Segment) -> list[int | tuple[int, int] | None]:
    """Where its exits lead: the position of a primal, or (segment, entry)."""
    return [exit_.primal if exit_.entry is None else exit_.entry for exit_ in segment.exits]


def test_one_output_is_one_segment_in_the_engine_s_order() -> None:
    (segment,) = taped(lambda x, w: (x @ w).tanh().sum(), leaf(2, 3), leaf(3, 4)).segments()
    assert names_of(segment.nodes) == ["Sum", "Tanh", "Mm"]
    assert (len(segment.entries), segment.num_tangents) == (2, 1)  # the sum's, and what Tanh saved: its result
    assert ends(segment) == [0, 1]


def two_heads(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    features = x @ w
    return features.sin(), features.cos()


def test_what_other_outputs_reach_is_another_segment() -> None:
    trunk, sin, cos = taped(two_heads, leaf(2, 3), leaf(3, 4)).segments()
    assert cuts((trunk, sin, cos)) == [["Mm"], ["Sin"], ["Cos"]]
    assert [segment.number for segment in (trunk, sin, cos)] == [0, 1, 2]
    assert ends(sin) == ends(cos) == [(0, 0)] and ends(trunk) == [0, 1]
    assert [segment.num_tangents for segment in (trunk, sin, cos)] == [1, 1, 1]


def test_a_stage_that_another_runs_between_is_two_segments() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        first = x.sin()
        other = x.cos()
        return first.exp(), other

    assert cuts(taped(function, leaf(3)).segments()) == [["Sin"], ["Cos"], ["Exp"]]


def test_an_output_that_another_is_made_of_cuts() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y, y.exp()

    below, above = taped(function, leaf(3)).segments()
    assert cuts((below, above)) == [["Sin"], ["Exp"]]
    assert below.entries[0] == above.exits[0].source.next_functions[0]


def test_exits_are_in_the_order_in_which_eager_sends() -> None:
    (segment,) = taped(lambda x, w: (x * w).sin() + x.exp() + w, leaf(3), leaf(3)).segments()
    assert names_of(segment.nodes) == ["Add", "Add", "Exp", "Sin", "Mul"]
    assert ends(segment) == [1, 0, 0, 1]
    assert segment.shared == ((0, 3), (1, 2))


def test_split_at_leaves_cuts_behind_each_node_that_sends_to_one() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x.sin().cos() * w).exp()

    analysed = taped(function, leaf(3), leaf(3))
    assert cuts(analysed.segments()) == [["Exp", "Mul", "Cos", "Sin"]]
    assert cuts(analysed.segments(is_split_at_leaves=True)) == [["Cos", "Sin"], ["Exp", "Mul"]]


def test_saved_values_come_last_among_the_entries() -> None:
    """A backward of the backward sends gradients to what nodes saved; an input is none of the segment's own."""
    analysed = taped(lambda x: x.sin().exp().square(), leaf(3))
    (segment,) = analysed.segments()
    saved = [analysed.tape.saved[index].edge for index in segment.saved]
    assert names_of(tuple(edge[0] for edge in saved if edge is not None)) == ["torch::autograd::AccumulateGrad", "Exp", "Exp"]
    assert names_of(tuple(node for node, _ in segment.entries)) == ["Pow", "Exp"] and segment.num_tangents == 1


@pytest.mark.parametrize("is_needed", [True, False])
def test_inputs_that_need_no_gradient_are_no_ends(is_needed: bool) -> None:
    (segment,) = taped(torch.mul, leaf(3), torch.ones(3, requires_grad=is_needed)).segments()
    assert ends(segment) == ([0, 1] if is_needed else [0])


def test_nothing_that_records_is_no_segment() -> None:
    assert taped(torch.sin, torch.ones(3)).segments() == ()
    assert taped(lambda x: x.detach().sin(), leaf(3)).segments() == ()


def test_a_leaf_made_inside_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="leaf made inside the region"):
        taped(lambda x: x * torch.ones(3, requires_grad=True), leaf(3)).segments()
