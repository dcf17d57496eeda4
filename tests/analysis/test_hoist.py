"""``hoist``: what a call makes outside the Program, in which order, and what gets a detour on the way to it."""

import pytest
import torch

from gradc.analysis.identity_nodes import is_detour
from gradc.analysis.order import LiveNode, Made
from gradc.errors import UnsupportedError
from gradc.tape.weight_casts import Cast
from tests.analysis.taped import taped


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def order_of(function, *inputs):
    return taped(function, *inputs).order()


def used_view(a, b):
    early = a * b
    view = a.view(-1)
    return view, early.sum() + view.sum()


def test_nothing_to_hoist_changes_nothing():
    found = taped(lambda a: a.sin().sum(), leaf(2))
    assert found.hoisted.primals == found.tape.primals and found.hoisted.program is found.tape.program
    assert not found.hoisted.detours and found.hoisted.is_nested is None


def test_a_view_comes_after_a_detour_for_each_earlier_use():
    found = taped(used_view, leaf(2, 2), leaf(2, 2))
    assert [primal.name for primal in found.hoisted.primals] == [
        "input_0", "input_1", "input_1 for earlier uses", "input_0 for earlier uses", "view of input_0",
    ]  # fmt: skip
    assert [is_detour(primal) for primal in found.hoisted.primals] == [False, False, True, True, False]
    assert [primal.of for primal in found.hoisted.primals[2:]] == [1, 0, 0]
    assert {(node.name(), number): position for (node, number), position in found.hoisted.detours.items()} == {
        ("MulBackward0", 1): 2,
        ("MulBackward0", 0): 3,
    }


def test_what_is_hoisted_is_an_input_of_the_program_by_a_name_of_its_own():
    found = taped(used_view, leaf(2, 2), leaf(2, 2))
    names = [found.hoisted.program.slots[slot].name for slot in found.hoisted.program.inputs]
    assert names[:4] == ["input_0", "input_1", "detour", "detour_1"] and names[4].startswith("view")
    assert len({slot.name for slot in found.hoisted.program.slots}) == len(found.hoisted.program.slots)
    assert len(found.tape.program.inputs) == 2


def test_exits_go_through_detours():
    found = taped(used_view, leaf(2, 2), leaf(2, 2))
    exits = {(exit_.source.name(), exit_.primal) for segment in found.segments() for exit_ in segment.exits}
    assert {("MulBackward0", 3), ("MulBackward0", 2)} <= exits


def test_a_call_that_makes_all_in_eagers_order_needs_no_order():
    assert order_of(lambda a: a.sin().sum(), leaf(2)) == ()
    assert order_of(lambda a: (a.sin(), a.sin().cos()), leaf(2)) == ()


def test_a_segment_that_eager_makes_before_a_view_is_put_before_it():
    def f(a, b):
        early = b.sin()
        view = a.view(-1)
        return early, view, view.cos()

    assert order_of(f, leaf(2, 2), leaf(2, 2)) == (
        LiveNode(Made.PRIMAL, 2),
        LiveNode(Made.SEGMENT, 0),
        LiveNode(Made.PRIMAL, 3),
        LiveNode(Made.SEGMENT, 1),
    )


def test_a_view_of_an_intermediate_that_is_followed_by_others_is_in_the_order():
    def f(a):
        inner = a.sin()
        view = inner.view(-1)
        return inner, view, a.cos()

    order = order_of(f, leaf(2, 2))
    assert [(node.made, node.number) for node in order] == [(Made.SEGMENT, 0), (Made.OUTPUT, 1), (Made.SEGMENT, 1)]


def test_casts_of_weights_are_hoisted_and_no_call_makes_them():
    found = taped(lambda a, b: (a @ b).sum(), torch.randn(2, 2), leaf(2, 2), autocast=torch.bfloat16)
    (cast,) = found.hoisted.primals[2:]
    assert (cast.name, cast.of, cast.step) == ("input_1 in bfloat16", 1, Cast(torch.bfloat16))
    assert len(found.hoisted.program.instructions) == len(found.tape.program.instructions) - 1
    assert found.hoisted.is_nested is True and found.tape.weights == {1: True}


def test_an_argument_that_is_written_into_has_no_detour():
    def f(a, b):
        with torch.no_grad():
            a.add_(1)
        early = a * b
        view = b.view(-1)
        return view, early.sum() + view.sum()

    with pytest.raises(UnsupportedError, match="input written into whose casts or views are made outside"):
        taped(f, leaf(2, 2), leaf(2, 2))
