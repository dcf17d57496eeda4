"""Who holds a gradient while a backward pass is recorded: eager would count references, which the recording hides."""

from __future__ import annotations

import pytest
import torch

from gradc import native

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))


def make(walked=(), waiting=()):
    holders = native.extension.Holders(list(walked))
    holders.set_waiting([list(values) for values in waiting])
    return holders


def passed_on(values):
    """A node that returns what it was given."""
    return list(values)


def returning(make_outputs):
    """A node that returns ``make_outputs()``, and keeps nothing."""
    return lambda values: make_outputs()


# ---- values of the recording itself


def test_a_value_that_nobody_holds():
    value = torch.ones(2)
    holders = make()
    assert holders.is_held_once(value)
    assert holders.stealable_among([value]) == [True]
    assert not holders.is_from_boundary(value)


def test_no_value():
    assert make().stealable_among([None]) == [False]


def test_a_value_that_the_graph_holds():
    walked = torch.ones(2)
    holders = make(walked=[walked])
    assert not holders.is_held_once(walked)
    assert holders.stealable_among([walked]) == [False]
    assert not holders.may_add_in_place(walked, torch.ones(2))


def test_a_view_of_what_the_graph_holds():
    walked = torch.ones(2, 2)
    detached = walked[0].detach()
    holders = make(walked=[walked])
    assert holders.is_held_once(detached), "a leaf may take it: AccumulateGrad asks for the tensor only"
    assert holders.stealable_among([detached]) == [False]
    assert not holders.may_add_in_place(detached, torch.ones(2))


def test_a_value_that_waits_for_another_node():
    value, other = torch.ones(2), torch.ones(2)
    holders = make(waiting=[[other], [value]])
    assert not holders.is_held_once(value)
    assert holders.stealable_among([value]) == [False]


def test_memory_that_waits_for_another_node():
    value = torch.ones(2)
    holders = make(waiting=[[value.detach()]])
    assert holders.is_held_once(value)
    assert holders.stealable_among([value]) == [False]


def test_a_value_that_comes_in_twice():
    value = torch.ones(2)
    assert make().stealable_among([value, value]) == [False, False]


def test_a_sum_is_written_over_a_value_that_waits_once():
    value, other = torch.ones(2), torch.ones(2)
    assert make(waiting=[[value]]).may_add_in_place(value, other)
    assert not make(waiting=[[value], [value.detach()]]).may_add_in_place(value, other)
    assert not make(waiting=[[value]]).may_add_in_place(value, value.detach())


def test_a_view_holds_its_base():
    view = torch.ones(2, 2)[0]
    holders = make(waiting=[[view]])
    assert not holders.may_add_in_place(view, torch.ones(2))
    assert holders.stealable_among([view]) == [False]


# ---- what boundaries take


def test_what_a_boundary_took_and_nobody_kept():
    value = torch.ones(2)
    holders = make()
    holders.run([value], returning(lambda: [torch.zeros(2)]))
    assert holders.is_from_boundary(value)
    assert holders.is_held_once(value)
    assert holders.stealable_among([value]) == [False], "what boundaries take is foreign memory from then on"


def test_what_a_hook_keeps():
    value, kept = torch.ones(2), []
    holders = make()
    holders.run([value], lambda values: kept.extend(values) or [None])
    assert not holders.is_held_once(value)


def test_what_a_hook_keeps_in_another_list_of_inputs():
    value, other, kept = torch.ones(2), torch.ones(2), []
    holders = make()
    holders.run([value, other, value], lambda values: kept.append(values[1]) or [None])
    assert holders.is_held_once(value)
    assert not holders.is_held_once(other)


def test_what_is_handed_on_is_not_kept():
    value = torch.ones(2)
    holders = make()
    (handle,) = holders.run([value], passed_on)
    assert handle is not value
    assert holders.is_held_once(value)
    assert holders.is_held_once(handle)


def test_what_is_kept_and_handed_on():
    value, kept = torch.ones(2), []
    holders = make()
    (handle,) = holders.run([value], lambda values: kept.extend(values) or values)
    assert not holders.is_held_once(value)
    assert not holders.is_held_once(handle)


# ---- what boundaries return


def test_what_a_boundary_made():
    holders = make()
    (handle,) = holders.run([torch.ones(2)], returning(lambda: [torch.zeros(2)]))
    holders.set_waiting([[handle]])
    assert holders.is_from_boundary(handle)
    assert holders.is_added_to_this_time(handle, torch.ones(2)), "eager does"
    assert not holders.may_add_in_place(handle, torch.ones(2)), "on another run a hook may keep it"


def test_what_a_boundary_made_comes_to_the_next_node():
    holders = make()
    (handle,) = holders.run([torch.ones(2)], returning(lambda: [torch.zeros(2)]))
    assert holders.stealable_among([handle]) == [True]


def test_what_python_holds():
    mine = torch.zeros(2)
    holders = make()
    (handle,) = holders.run([torch.ones(2)], lambda values: [mine])
    assert not holders.is_held_once(handle)
    assert holders.stealable_among([handle]) == [False]
    assert not holders.is_added_to_this_time(handle, torch.ones(2))


def test_what_a_view_in_python_holds():
    views = []

    def node(values):
        made = torch.zeros(2, 2)
        views.append(made.detach())
        return [made]

    holders = make()
    (handle,) = holders.run([torch.ones(2)], node)
    assert holders.is_held_once(handle)
    assert holders.stealable_among([handle]) == [False]
    assert not holders.is_added_to_this_time(handle, torch.ones(2))


def test_one_tensor_returned_twice():
    def node(values):
        made = torch.zeros(2)
        return [made, made]

    holders = make()
    first, second = holders.run([torch.ones(2)], node)
    assert first is not second
    assert holders.is_held_once(first) and holders.is_held_once(second)
    holders.set_waiting([[second]])
    assert not holders.is_held_once(first), "what waits is the same tensor"
    assert holders.stealable_among([first]) == [False]


def test_one_tensor_returned_twice_and_kept_later():
    kept = []

    def node(values):
        made = torch.zeros(2)
        return [made, made]

    holders = make()
    first, second = holders.run([torch.ones(2)], node)
    holders.run([first], lambda values: kept.extend(values) or [None])
    assert not holders.is_held_once(second)


def test_no_gradient_is_returned_as_none():
    assert make().run([torch.ones(2), None], returning(lambda: [None])) == [None]


def test_results_are_what_boundaries_returned():
    mine, other = torch.zeros(2), torch.ones(2)
    holders = make()
    first, second = holders.run([torch.ones(2)], lambda values: [mine, mine])
    results = holders.as_returned([second, other, None, first])
    assert [result is mine for result in results] == [True, False, False, True]
    assert results[1] is other and results[2] is None
