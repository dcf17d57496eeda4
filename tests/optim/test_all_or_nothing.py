"""A native step that an error or Ctrl-C ends leaves each parameter group as eager does, or untouched."""

import signal

import pytest
import torch
from torch import nn, optim

import gradc
from gradc import native
from gradc.bits import same_bits
from gradc.optim import native_step

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))


def parameters(num=4):
    return [nn.Parameter(torch.linspace(-1, 2, 5 + number)) for number in range(num)]


def give_gradients(params, number=0):
    for p in params:
        p.grad = torch.sin(p.detach() * (number + 1))


def state_of(params, optimizer):
    states = [optimizer.state.get(p, {}) for p in params]
    return [p.detach().clone() for p in params], [[(name, _copy(value)) for name, value in state.items()] for state in states]


def _copy(value):
    return (value.clone(), value._version) if isinstance(value, torch.Tensor) else value


def run(make, break_it, is_compiled):
    """Two steps, one that may fail, and one more. Returns what there is after the last two, and the error."""
    params = parameters()
    optimizer = make(params)
    optimizer = gradc.compile(optimizer) if is_compiled else optimizer
    for number in range(2):
        give_gradients(params, number)
        optimizer.step()
    mend = break_it(params, optimizer)
    try:
        optimizer.step()
        error = ""
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    after = state_of(params, optimizer)
    mend()
    optimizer.step()
    return error, after, state_of(params, optimizer)


def with_setting(name, value):
    """The settings of the last group changed for one step."""

    def break_it(params, optimizer):
        group = optimizer.param_groups[-1]
        before, group[name] = group[name], value
        return lambda: group.update({name: before})

    return break_it


def with_state(name, value):
    """The state of the third parameter changed for one step."""

    def break_it(params, optimizer):
        state = optimizer.state[params[2]]
        before = state.pop(name)
        state[name] = value(before)
        return lambda: state.update({name: before})

    return break_it


def two_groups(kind, **options):
    return lambda params: kind([{"params": params[:2]}, {"params": params[2:], "lr": 0.3}], **options)


BREAKS = {
    "beta of 1": (optim.Adam, with_setting("betas", (1.0, 1.0))),
    "beta above 1": (optim.Adam, with_setting("betas", (0.9, 1.5))),
    "RAdam, beta of 1": (optim.RAdam, with_setting("betas", (0.9, 1.0))),
    "NAdam, beta above 1": (optim.NAdam, with_setting("betas", (0.9, 1.5))),
    "Adamax, beta of 1": (optim.Adamax, with_setting("betas", (1.0, 0.9))),
    "lr is text": (optim.SGD, with_setting("lr", "0.1")),
    "state of another size": (optim.Adam, with_state("exp_avg", lambda value: value[:2])),
    "no step count": (optim.Adagrad, with_state("step", lambda value: None)),
    "no step count, NAdam": (optim.NAdam, with_state("step", lambda value: None)),
    "no step count, RAdam": (optim.RAdam, with_state("step", lambda value: None)),
    "a step count of two numbers": (optim.RMSprop, with_state("step", lambda value: torch.ones(2))),
    "no product": (optim.NAdam, with_state("mu_product", lambda value: None)),
    "state of an integer dtype": (optim.Adadelta, with_state("square_avg", lambda value: value.long())),
}


@pytest.mark.parametrize("name", BREAKS)
def test_an_error_leaves_what_eager_leaves(name):
    kind, break_it = BREAKS[name]
    eager, compiled = (run(two_groups(kind), break_it, is_compiled) for is_compiled in (False, True))
    assert eager[0] == compiled[0]
    assert same_bits(eager[1:], compiled[1:])


def test_the_errors_are_errors_in_eager():
    raising = [name for name, (kind, break_it) in BREAKS.items() if run(two_groups(kind), break_it, False)[0]]
    assert len(raising) >= 10, raising


def test_two_parameters_with_one_step_count():
    def run(is_compiled):
        params = parameters()
        optimizer = optim.Adam(params)
        optimizer = gradc.compile(optimizer) if is_compiled else optimizer
        for number in range(3):
            give_gradients(params, number)
            optimizer.step()
            optimizer.state[params[1]]["step"] = optimizer.state[params[0]]["step"]
        return state_of(params, optimizer)

    gradc.counters.clear()
    assert same_bits(run(False), run(True))
    assert gradc.counters["optim"]["by torch: step counts that share memory"] == 2


@pytest.mark.parametrize("kind", [optim.Adam, optim.RAdam, optim.SGD])
def test_a_group_without_gradients(kind):
    def run(is_compiled):
        params = parameters()
        optimizer = two_groups(kind)(params)
        optimizer = gradc.compile(optimizer) if is_compiled else optimizer
        for number in range(3):
            give_gradients(params, number)
            if number:
                params[2].grad = params[3].grad = None
            optimizer.step()
        return state_of(params, optimizer)

    assert same_bits(run(False), run(True))


class Pressed(BaseException):
    """Ctrl-C."""


@pytest.mark.parametrize("kind", [optim.Adam, optim.NAdam, optim.RAdam, optim.Adagrad])
def test_ctrl_c_before_an_update_leaves_the_group_untouched(kind, monkeypatch):
    """Python looks for signals between its own instructions, the last of which compute numbers."""
    monkeypatch.setattr(native_step, "written_down", lambda numbers: None)  # C++ would compute them
    params = parameters()
    optimizer = gradc.compile(two_groups(kind)(params))
    give_gradients(params)
    optimizer.step()
    before = state_of(params, optimizer)
    numbers = native_step._numbers

    def press(formula, settings, key):
        if settings["lr"] == 0.3:  # of the second group
            signal.raise_signal(signal.SIGINT)
        return numbers(formula, settings, key)

    def pressed(*_):
        raise Pressed

    monkeypatch.setattr(native_step, "_numbers", press)
    handler = signal.signal(signal.SIGINT, pressed)
    try:
        with pytest.raises(Pressed):
            optimizer.step()
    finally:
        signal.signal(signal.SIGINT, handler)
    after = state_of(params, optimizer)
    is_same = [same_bits(one, other) for one, other in zip(zip(*before), zip(*after), strict=True)]
    assert is_same == [False, False, True, True]


def test_a_schedule_that_was_there_first_sees_the_steps(recwarn):
    params = parameters()
    optimizer = optim.SGD(params, lr=0.1)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1)
    gradc.compile(optimizer)
    gradc.counters.clear()
    for number in range(2):
        give_gradients(params, number)
        optimizer.step()
        schedule.step()
    assert not [str(warning.message) for warning in recwarn if "lr_scheduler" in str(warning.message)]
    assert gradc.counters["optim"] == {"native steps": 2}
