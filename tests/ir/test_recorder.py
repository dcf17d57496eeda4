"""What a Recorder notes: calls below autograd, names, constants, autocast, mutation."""

import keyword

import pytest
import torch

from gradc.errors import UnsupportedError
from gradc.ir.known import RESERVED
from gradc.ir.recorder import Recorder
from gradc.ir.verify import verify
from tests.ir.build import ops, recorded


def test_composite_ops_are_recorded_as_what_they_call():
    made = recorded(lambda x, w: torch.nn.functional.linear(x, w), torch.ones(2, 3), torch.ones(4, 3))
    assert ops(made) == ["t", "mm"]


def test_calls_that_return_no_tensor_are_left_out():
    assert ops(recorded(lambda x: x.sin() if x.stride(0) == 1 else x, torch.ones(2))) == ["sin"]


def test_an_in_place_call_keeps_its_slot():
    made = recorded(lambda x: x.sin().add_(1), torch.ones(2))
    sin, add = made.instructions
    assert add.outs == sin.outs == add.writes
    verify(made)


def test_a_tensor_of_the_code_becomes_a_constant():
    weight = torch.ones(2)
    made = recorded(lambda x: x * weight, torch.ones(2))
    assert [tensor is weight for tensor in made.constants.values()] == [True]
    verify(made)


def test_a_literal_is_cloned_at_each_run():
    """``torch.tensor`` inside: eager makes a new tensor each time, so in-place use must not reach the constant."""
    made = recorded(lambda x: torch.tensor([1.0, 2.0]).add_(x), torch.ones(2))
    assert "clone" in ops(made)
    assert [tensor.tolist() for tensor in made.constants.values()] == [[1.0, 2.0]]


@pytest.mark.parametrize("name", ["lambda", "args", "torch", "s27", "2d", "a b", "", "layers.0.weight"])
def test_any_name_becomes_one_that_can_be_printed(name):
    recorder = Recorder("program")
    for _ in range(2):
        recorder.add_input(torch.ones(2), name)
    made = recorder.program([])
    first, second = (slot.name for slot in made.slots)
    assert first != second and first.isidentifier() and not keyword.iskeyword(first) and first not in RESERVED
    verify(made)


def test_names_that_look_like_numbered_ones_do_not_clash():
    recorder = Recorder("program")
    for name in ("sin_1", "sin", "sin", "sin"):
        recorder.add_input(torch.ones(2), name)
    assert len({slot.name for slot in recorder.slots}) == 4


def test_a_name_after_thousands_of_numbered_ones_needs_no_recursion():
    """The backward of 1,000 layers of one kind takes tanh_1, tanh_2, ... as inputs, and then calls tanh itself."""
    recorder = Recorder("program")
    for number in range(1, 3000):
        recorder.add_input(0, f"tanh_{number}")
    recorder.add_input(0, "tanh")
    recorder.add_input(0, "tanh")
    assert [slot.name for slot in recorder.slots[-2:]] == ["tanh", "tanh_3000"]


def test_a_handle_is_known_by_where_its_tensor_lies_now():
    recorder = Recorder("program")
    x = torch.ones(2, 3)
    slot = recorder.add_input(x, "x")
    assert recorder.slot_of_alias(x.detach()) == slot
    with torch.no_grad(), recorder:
        x.t_()
    assert recorder.slot_of_alias(x.detach()) == slot
    assert recorder.slot_of_alias(x.detach().t()) is None


def test_a_lazy_conjugate_is_not_known_by_what_it_is_the_conjugate_of():
    recorder = Recorder("program")
    z = torch.ones(2, dtype=torch.complex64)
    recorder.add_input(z, "z")
    assert recorder.slot_of_alias(z.conj()) is None


def test_autocast_is_noted_for_calls_that_would_see_it():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = recorded(lambda x: torch.bilinear(x, x, x.view(1, 2, 2), None), torch.ones(2, 2))
    seen = {name: call.autocast.enabled for name, call in zip(ops(made), made.instructions)}
    assert seen["_trilinear"] == (("cpu", torch.bfloat16),)


def test_a_data_dependent_number_is_refused():
    from gradc.torch_private.fakes import FakeTensorMode

    with pytest.raises((UnsupportedError, RuntimeError)), FakeTensorMode() as mode:
        recorded(lambda x: x * x.sum().item(), mode.from_tensor(torch.ones(2)))


def test_what_stands_in_for_ops_is_not_noted_and_goes_when_it_raises():
    recorder = Recorder("program")
    x = torch.ones(2)
    recorder.add_input(x, "x")

    def fail(op, args, kwargs):
        raise ValueError(str(op))

    with torch.no_grad(), recorder:
        with recorder.intercepting(lambda op, args, kwargs: args[0]):
            assert x.sin() is x
            with pytest.raises(ValueError, match="cos"), recorder.intercepting(fail):
                x.cos()
            assert x.exp() is x
        y = x.tanh()
    assert ops(recorder.program([y])) == ["tanh"]


def test_the_place_of_calls_is_what_it_was_after_an_error():
    recorder = Recorder("program", place=lambda: ("line 1", "outer"))
    x = torch.ones(2)
    recorder.add_input(x, "x")
    with torch.no_grad(), recorder:
        with pytest.raises(ValueError, match="inside"), recorder.placing(lambda: ("line 2", "inner")):
            y = x.sin()
            raise ValueError("inside")
        z = y.cos()
    made = recorder.program([z]).instructions
    assert [(call.where, call.origin) for call in made] == [("line 2", "inner"), ("line 1", "outer")]
