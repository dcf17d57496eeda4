"""When a sum of gradients is written over its first addend, and what then shows."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gradc.ir.sums import EngineSums, does_layout_tell


@pytest.fixture
def addend():
    return torch.empty_strided((1, 3), (7, 1))  # no new tensor has such a stride in a dimension of size 1


def is_written_over(addend, stealable=(), slot=0, is_input=False, known=()):
    sums = EngineSums()
    sums.stealable.update(stealable)
    with torch.no_grad():
        return sums.is_written_over(addend, slot, is_input, lambda: known)


def test_a_tensor_that_nobody_else_holds(addend):
    assert is_written_over(addend)


def test_not_what_gradients_flow_through(addend):
    with torch.enable_grad():
        assert not EngineSums().is_written_over(addend, 0, False, tuple)


def test_not_a_view(addend):
    assert not is_written_over(addend.view(1, 3))


def test_an_input_only_if_it_may_be_stolen(addend):
    assert not is_written_over(addend, is_input=True)
    assert is_written_over(addend, is_input=True, stealable=[0])
    assert not is_written_over(addend, is_input=True, stealable=[1])


def test_the_layout_tells_only_where_the_sum_lies_otherwise_than_the_addend(addend):
    assert does_layout_tell(addend, torch.empty(1, 3))
    assert not does_layout_tell(torch.empty(1, 3), torch.empty(1, 3))


def test_not_what_others_hold(addend):
    w = torch.ones(3, requires_grad=True)
    held = [w * addend for _ in range(5)]  # each node saves it
    assert not is_written_over(addend)
    held.clear()
    assert is_written_over(addend)


def test_what_a_formula_wrote_into_by_views_that_the_recording_still_holds():
    with FakeTensorMode(), torch.no_grad():
        made = torch.ones(3, 3)
        views = [made.narrow(1, number, 1) for number in range(3)]
        views[0].mul_(2)
        assert not is_written_over(made)
        assert is_written_over(made, known=views)
        holder = torch.ones(1, requires_grad=True)
        with torch.enable_grad():
            held = [holder * view for view in views]  # each node saves one
        assert not is_written_over(made, known=views)
        del held
