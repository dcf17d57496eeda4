"""Passes over Programs: what goes, and what must stay."""

import pytest
import torch

from gradc.errors import UnsupportedError
from gradc.executor.core import interpret
from gradc.ir.recorder import Recorder
from gradc.ir.verify import verify
from gradc.passes.dce import dce, refuse_phantoms
from tests.ir.build import ops, recorded


def dropped(function, *inputs, is_backward):
    made = dce(recorded(function, *inputs), is_backward=is_backward)
    verify(made)
    return ops(made)


def two_results(x):
    x.cos()
    return x.sin()


def test_a_backward_loses_kernels_whose_results_nobody_uses():
    assert dropped(two_results, torch.ones(2), is_backward=True) == ["sin"]


def test_a_forward_keeps_every_kernel():
    """It may raise, as an index out of bounds does; eager's would."""
    assert dropped(two_results, torch.ones(2), is_backward=False) == ["cos", "sin"]


@pytest.mark.parametrize("is_backward", [True, False])
def test_views_nobody_uses_go(is_backward):
    assert dropped(lambda x: (x.t(), x.sin())[1], torch.ones(2, 2), is_backward=is_backward) == ["sin"]


@pytest.mark.parametrize("is_backward", [True, False])
def test_random_draws_stay(is_backward):
    """The next draw depends on them."""

    def draw(x):
        torch.rand(3)
        torch.nn.functional.dropout(x, 0.5)
        return x.sin()

    assert dropped(draw, torch.ones(2), is_backward=is_backward)[0] == "rand"
    assert any("bernoulli" in name or "dropout" in name for name in dropped(draw, torch.ones(2), is_backward=is_backward))


@pytest.mark.parametrize("is_backward", [True, False])
def test_mutations_stay_and_what_they_read(is_backward):
    def mutate(x, y):
        x.view(-1).add_(y.sin())
        return y

    assert dropped(mutate, torch.ones(2, 2), torch.ones(4), is_backward=is_backward) == ["view", "sin", "add_"]


def test_a_backward_keeps_what_may_raise_and_what_it_reads():
    def look(x):
        x.cos()
        x[x.long()]
        torch.linalg.inv(x[None] + 1)
        return x.sin()

    kept = dropped(look, torch.zeros(1), is_backward=True)
    assert kept == ["_to_copy", "index", "unsqueeze", "add", "linalg_inv_ex", "_linalg_check_errors", "sin"]


def test_detached_handles_are_read_through():
    made = dce(recorded(lambda x: x.sin().detach().cos(), torch.ones(2)), is_backward=True)
    assert ops(made) == ["sin", "cos"]


def test_in_place_calls_on_a_detached_handle_are_calls_on_what_it_is_a_handle_of():
    made = dce(recorded(lambda x: ((y := x.sin()).detach().add_(1), y.cos())[1], torch.ones(2)), is_backward=True)
    verify(made)
    assert ops(made) == ["sin", "add_", "cos"]
    sin, add, _ = made.instructions
    assert sin.outs == add.outs


def test_a_handle_that_is_transposed_alone_is_not_read_through():
    def transposes(x):
        y = x.sin()
        y.detach().t_()
        return y.cos()

    made = dce(recorded(transposes, torch.ones(2, 3)), is_backward=True)
    verify(made)
    (result,) = interpret.lower(made)([torch.ones(2, 3)])
    assert result.shape == (2, 3)


def test_a_detached_output_stays_an_object_of_its_own():
    made = dce(recorded(lambda x: (y := x.sin(), y.detach()), torch.ones(2)), is_backward=True)
    assert ops(made) == ["sin", "detach"]
    sin, detached = interpret.lower(made)([torch.ones(2)])
    assert sin is not detached and sin.data_ptr() == detached.data_ptr()


def test_a_value_that_cannot_be_had_is_refused_only_if_read():
    recorder = Recorder("program", lift=lambda tensor: recorder.add_phantom(tensor))
    x, hidden = torch.ones(2), torch.ones(2)
    recorder.add_input(x, "x")
    with recorder:
        hidden.cos()
        result = x.sin()
    made = recorder.program([result])
    assert ops(refuse_phantoms(dce(made, is_backward=True))) == ["sin"]
    with pytest.raises(UnsupportedError, match="forward value kept outside saved tensors: aten.cos.default"):
        refuse_phantoms(dce(made, is_backward=False))
