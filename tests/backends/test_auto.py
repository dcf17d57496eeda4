"""Backend "auto": what is asked for, offered, timed and chosen, call by call. Inductor compiles in this process, at once."""

import copy
import pickle
import threading
import time

import pytest
import torch
from torch import nn
from torch._dynamo.convert_frame import CatchErrorsWrapper

import gradc
from gradc import native
from gradc.backends import auto, inductor_process, list_backends, lower_of
from gradc.backends.ahead_of_time import compile_program
from gradc.backends.inductor_worker import Answer, Refused
from gradc.bits import same_bits
from gradc.errors import ConfigError
from gradc.executor.core.candidates import CandidateSpec, input_of
from gradc.ir.pickled import pickled, unpickled
from gradc.journal import counters, listening
from gradc.options import CompileOptions
from tests.ir.build import recorded

FASTEST = {"backend": "auto", "options": {"bitwise": False}}
needs_extension = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))


@pytest.fixture(autouse=True)
def nothing_chosen():
    gradc.reset()
    yield
    gradc.reset()


class Asked:
    """In the place of the process that compiles: what was asked for, and what is answered."""

    def __init__(self, monkeypatch):
        self.jobs, self._done = [], []
        monkeypatch.setattr(inductor_process, "ask", self._ask)

    def _ask(self, job, is_wanted, done):
        assert is_wanted()
        self.jobs.append(job())
        self._done.append(done)
        return True

    def answer(self, result):
        """Answer all of them."""
        while self._done:
            self._done.pop()(Answer(result, 1.0))

    def compile(self):
        """Have Inductor compile all of them, here and now."""
        for job, done in zip(self.jobs, self._done, strict=True):
            done(Answer(compile_program(unpickled(job.program), job.inputs, job.num_threads), 1.0))
        self._done.clear()


@pytest.fixture
def asked(monkeypatch):
    return Asked(monkeypatch)


class Net(nn.Module):
    """A view of an input among the outputs, a parameter that gets no gradient, and a buffer that is written into."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.unused = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.norm(self.body(x).tanh()).sin(), x.t()


def seen(model, call, x):
    """All that a step shows: results, gradients and Nones, aliasing, versions, and what it wrote."""
    x = x.clone().requires_grad_()
    out, view = call(x)
    out.square().sum().backward()
    alike = view.data_ptr() == x.data_ptr(), view._version == x._version, view._base is x
    grads = [parameter.grad for parameter in (x, *model.parameters())]
    for parameter in model.parameters():
        parameter.grad = None
    versions = [buffer._version for buffer in model.buffers()]
    values = [out.detach(), view.detach(), *grads, *(buffer.clone() for buffer in model.buffers())]
    return values, [alike, versions, out.grad_fn is not None]


def times(monkeypatch, replay, inductor):
    """Let the timing come to this."""
    choose = auto._Contestant._choose
    monkeypatch.setattr(auto._Contestant, "_choose", lambda self, *_: choose(self, replay, inductor))


@needs_extension
def test_a_step_goes_over_to_the_faster_code_and_shows_all_that_eagers_shows(asked, monkeypatch):
    times(monkeypatch, 2e-3, 1e-3)
    model = Net()
    eager = copy.deepcopy(model)
    compiled = gradc.compile(model, **FASTEST)
    with listening() as events:
        for number in range(auto.NUM_CALLS + auto.CALLS_OF_A_TRIAL + 4):
            torch.manual_seed(number)
            x = torch.randn(6, 4)
            ours, eagers = seen(model, compiled, x), seen(eager, eager, x)
            assert ours[1] == eagers[1]
            for own, other in zip(ours[0], eagers[0], strict=True):
                assert (own is None) == (other is None)
                if own is not None:
                    assert (own.dtype, own.stride()) == (other.dtype, other.stride())
                    torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
            model.load_state_dict(eager.state_dict())
            eager.load_state_dict(model.state_dict())
            if number == auto.NUM_CALLS + 1:
                assert len(asked.jobs) == 2 and auto.choices() == ()
                asked.compile()
    forward, backward = sorted(auto.choices(), key=lambda choice: choice.program)[::-1]
    assert (forward.program, forward.way, backward.way) == ("forward", auto.Way.INDUCTOR, auto.Way.INDUCTOR)
    assert str(forward) == "forward runs Inductor's code: 2000 us replayed, 1000 us by Inductor's code"
    assert counters["auto"] == {"programs compiled": 2, "programs that Inductor's code runs": 2}
    assert next(event.what for event in events if event.artifact == "perf").startswith(str(auto.choices()[0]))


@needs_extension
def test_replay_goes_on_where_it_is_as_fast(asked, monkeypatch):
    times(monkeypatch, 1.01e-3, 1e-3)
    w = torch.randn(5, requires_grad=True)
    compiled = gradc.compile(lambda w: w.exp().sum(), **FASTEST)
    for number in range(auto.NUM_CALLS + auto.CALLS_OF_A_TRIAL):
        if number == auto.NUM_CALLS:
            asked.compile()
        out = compiled(w)
    assert [choice.way for choice in auto.choices()] == [auto.Way.REPLAY]
    assert counters["auto"]["programs that replay runs faster"] == 1
    assert same_bits(out, w.exp().sum())


@needs_extension
def test_what_is_not_compiled_is_counted_and_replayed(asked):
    w = torch.randn(5, requires_grad=True)
    compiled = gradc.compile(lambda w: w.sin().sum(), **FASTEST)
    for _ in range(auto.NUM_CALLS):
        compiled(w).backward()
    asked.answer(Refused("Inductor cannot compile it", "AssertionError: no way"))
    assert counters["auto"] == {"not compiled: Inductor cannot compile it": 2}
    assert {choice.why for choice in auto.choices()} == {"Inductor cannot compile it: AssertionError: no way"}
    assert str(auto.choices()[0]).endswith("is replayed: Inductor cannot compile it: AssertionError: no way")
    assert same_bits(compiled(w), w.sin().sum())
    assert counters["fallbacks"].total() == 0


@needs_extension
def test_a_library_that_cannot_be_loaded_is_counted(asked):
    w = torch.randn(5)
    compiled = gradc.compile(torch.sin, **FASTEST)
    for _ in range(auto.NUM_CALLS):
        compiled(w)
    spec = CandidateSpec("no such file", 1, (input_of(w),), (("made", 0),), (), (), (), False)
    asked.answer(spec)
    assert counters["auto"] == {"not compiled: code that cannot be loaded": 1}


@needs_extension
def test_an_index_that_eager_refuses_raises_eagers_error(asked, monkeypatch):
    """The code raises another; the call is made again by eager's kernels, and the code runs no more."""
    times(monkeypatch, 2e-3, 1e-3)
    table, good, bad = torch.randn(4, 3), torch.tensor([0, 3]), torch.tensor([0, 9])
    compiled = gradc.compile(lambda table, index: table[index] * 2, **FASTEST)
    for number in range(auto.NUM_CALLS + auto.CALLS_OF_A_TRIAL):
        if number == auto.NUM_CALLS:
            asked.compile()
        compiled(table, good)
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        compiled(table, bad)
    assert counters["auto"]["programs whose code raised"] == 1
    assert same_bits(compiled(table, good), table[good] * 2)


@needs_extension
def test_other_sizes_threads_and_settings_are_replayed(asked, monkeypatch):
    times(monkeypatch, 2e-3, 1e-3)
    compiled = gradc.compile(lambda x: x.sin().cos(), dynamic=True, **FASTEST)
    for number in range(auto.NUM_CALLS + auto.CALLS_OF_A_TRIAL):
        if number == auto.NUM_CALLS:
            asked.compile()
        compiled(torch.ones(6))
    assert [choice.way for choice in auto.choices()] == [auto.Way.INDUCTOR]
    x = torch.randn(7)
    assert same_bits(compiled(x), x.sin().cos())
    x = torch.randn(6)
    torch.set_num_threads(2)
    assert same_bits(compiled(x), x.sin().cos())
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    assert same_bits(compiled(x), x.sin().cos())


@needs_extension
def test_threads_may_run_one_plan_while_it_is_tried(asked):
    x = torch.randn(64)
    compiled = gradc.compile(lambda x: x.sin().cos(), **FASTEST)
    for _ in range(auto.NUM_CALLS):
        compiled(x)
    asked.compile()
    wrong = []

    def run():
        for _ in range(60):
            if not torch.allclose(compiled(x), x.sin().cos()):
                wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong and len(auto.choices()) == 1


@needs_extension
def test_what_is_forgotten_is_not_wanted_any_more(monkeypatch):
    wanted = []
    monkeypatch.setattr(inductor_process, "ask", lambda job, is_wanted, done: wanted.append(is_wanted) or True)
    compiled = gradc.compile(torch.sin, **FASTEST)
    for _ in range(auto.NUM_CALLS):
        compiled(torch.ones(3))
    assert wanted[0]()
    del compiled
    gradc.reset()
    assert not wanted[0]()


def test_with_eagers_bits_nothing_is_asked_for(asked):
    x = torch.randn(3)
    compiled = gradc.compile(lambda x: x.sin().exp(), backend="auto")
    for _ in range(auto.NUM_CALLS + 1):
        assert same_bits(compiled(x), x.sin().exp())
    assert asked.jobs == [] and auto.choices() == ()


def test_it_is_a_backend_and_its_option_is_checked():
    assert "auto" in list_backends()
    assert lower_of(CompileOptions("auto")) is lower_of(CompileOptions("replay"))
    assert lower_of(CompileOptions("auto", options=(("bitwise", False),))) is auto.lower
    with pytest.raises(ConfigError, match="bitwise=1: True or False"):
        gradc.compile(torch.sin, backend="auto", options={"bitwise": 1})
    with pytest.raises(ConfigError, match='bitwise is for backend="auto"'):
        gradc.compile(torch.sin, options={"bitwise": False})
    with pytest.raises(ConfigError, match="verify compares bit for bit"):
        gradc.compile(torch.sin, backend="auto", options={"bitwise": False, "verify": 1})


def test_a_compiled_module_is_copied_with_what_was_asked_for():
    model = gradc.compile(nn.Linear(2, 2), **FASTEST)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other._gradc_calls.options == model._gradc_calls.options
        assert not other._gradc_calls.options.is_bitwise
        x = torch.randn(3, 2)
        assert same_bits(other(x), model(x))


@needs_extension
def test_what_eager_won_is_tried_again_once_there_is_other_code(monkeypatch):
    from gradc.frontend import faster
    from gradc.policy import profitability
    from gradc.policy.ab_timer import Arm

    gradc.config.compare_with_eager = True
    try:
        compiled = gradc.compile(lambda x: x.sin(), **FASTEST)
    finally:
        gradc.config.compare_with_eager = False
    decision, *_ = faster._entries[compiled._gradc_call].decisions
    decision.chosen, decision.num_rest, decision._num_offers = Arm.EAGER, 1000, profitability.num_offers()
    decision.tell = lambda: None
    compiled(torch.ones(2))
    assert decision.num_rest == 999
    auto._tell_others()
    for _ in range(profitability.CALLS_UNASKED + 1):  # the native entry asks only so often
        compiled(torch.ones(2))
    assert (decision.chosen, decision.num_rest) == (Arm.COMPILED, 0)


@needs_extension
def test_what_sends_a_program_away_is_nothing_for_dynamo_to_look_at(asked, monkeypatch):
    """It is called in the midst of a step: to ask Dynamo for each of its functions took 10 ms."""
    looked_at, call = [], CatchErrorsWrapper.__call__
    model = gradc.compile(Net(), **FASTEST)
    for _ in range(auto.NUM_CALLS - 2):
        seen(model, model, torch.randn(6, 4))

    def noted(self, frame, *others):
        looked_at.append(frame.f_code)
        return call(self, frame, *others)

    monkeypatch.setattr(CatchErrorsWrapper, "__call__", noted)
    for _ in range(4):
        seen(model, model, torch.randn(6, 4))
    assert len(asked.jobs) == 2
    assert not [code.co_qualname for code in looked_at if "gradc/backends" in code.co_filename]


def test_a_program_is_sent_in_slices_between_which_other_threads_run(monkeypatch):
    """It took 7 ms for the 384 calls of an MLP, and a step of 1 ms waited for all of them."""
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    values = [torch.randn(3)]
    program = recorded(lambda x: [x := x.sin() + 1 for _ in range(200)][-1], *values)
    start = time.perf_counter()
    pickled(program)
    assert len(pauses) > (time.perf_counter() - start) / 1e-3
