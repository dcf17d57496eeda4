"""The fuzzer of training steps: its programs run and vary; what is not eager's is seen; and some run as in eager."""

from __future__ import annotations

import ast

import pytest
import torch

from tests.compilers import EAGER, Compiler
from tests.fuzz_python.judge import BAD, judge
from tests.fuzz_python.observe import Recorder
from tests.fuzz_steps.changes import CHANGES
from tests.fuzz_steps.generate import generate
from tests.fuzz_steps.optimizers import OPTIONS

NUM_PROGRAMS, NUM_TESTS = 12, 2
STEP = """
from tests.fuzz_steps.toolbox import *
MODEL = nn.Linear(4, 4)
OPTIMIZER = torch.optim.Adam(MODEL.parameters())
SCHEDULE = lr_scheduler.StepLR(OPTIMIZER, 1)
SCALER = torch.amp.GradScaler("cpu")

def step(x):
    OPTIMIZER.zero_grad()
    SCALER.scale(MODEL(x).square().mean()).backward()
    SCALER.step(OPTIMIZER)
    SCALER.update()
    SCHEDULE.step()

def drive(compile, call):
    run = compile(step)
    call(run, torch.ones(2, 4))
    call(run, torch.ones(2, 4))
"""


def test_same_seed_same_program():
    assert generate(0, 7) == generate(0, 7) != generate(1, 7)


def test_each_optimizer_and_change_comes_and_can_be_read():
    texts = [generate(0, number) for number in range(1500)]
    for text in texts[:100]:
        ast.parse(text)
    said = "\n".join(texts)
    for name in OPTIONS:
        assert f"torch.optim.{name}(" in said
    for change in CHANGES:
        assert change.split("\n")[0].split("{place}")[0] in said, change


def test_programs_run_in_eager_and_few_steps_fail():
    raised = [snapshot.raised for number in range(60) for snapshot in _run(generate(0, number))]
    assert 0 < sum(map(bool, raised)) < len(raised) / 4


def _run(text):
    torch.set_num_threads(1)
    return Recorder(EAGER).run(text)


def changing(name, change):
    """A compiler whose steps do something more."""

    def wrap(function, **options):
        def call(*args):
            try:
                return function(*args)
            finally:
                with torch.no_grad():
                    change(function.__globals__)

        return call

    return Compiler(name, wrap)


CHANGED = {
    "a parameter": lambda space: space["MODEL"].bias.mul_(1.0000001),
    "a gradient": lambda space: space["MODEL"].bias.grad.add_(1),
    "no gradient": lambda space: setattr(space["MODEL"].bias, "grad", None),
    "the state": lambda space: space["OPTIMIZER"].state[space["MODEL"].bias]["exp_avg"].neg_(),
    "the step count": lambda space: space["OPTIMIZER"].state[space["MODEL"].bias]["step"].add_(1),
    "a version": lambda space: space["MODEL"].weight.add_(0),
    "a group": lambda space: space["OPTIMIZER"].param_groups[0].update(eps=1.0),
    "the schedule": lambda space: space["SCHEDULE"].__dict__.update(last_epoch=7),
    "the scaler": lambda space: space["SCALER"].update(3.0),
    "the generator": lambda space: torch.rand(1),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_not_eagers_is_seen(name):
    verdict = judge(STEP, changing(name, CHANGED[name]))
    assert verdict.status == "wrong", verdict


CUT = STEP.replace(
    "SCHEDULE =",
    """
def refuse(grad):
    raise ValueError("refused")

MODEL.weight.grad = torch.ones(4, 4)
MODEL.bias.grad = torch.ones(4)
MODEL.weight.register_hook(refuse)
SCHEDULE =""",
).replace("    OPTIMIZER.zero_grad()\n", "")


@pytest.mark.parametrize(("name", "status"), [("a gradient", "ok"), ("a parameter", "wrong"), ("the schedule", "wrong")])
def test_gradients_behind_a_backward_that_raises_are_not_judged(name, status):
    verdict = judge(CUT, changing(name, CHANGED[name]))
    assert verdict.status == status and verdict.raises, verdict


def test_a_step_that_nobody_counted_is_seen():
    verdict = judge(STEP.replace("compile(step)", "step"), Compiler("gradc_for_nothing", EAGER.wrap))
    assert verdict.status == "uncounted", verdict


@pytest.mark.parametrize("part", range(NUM_TESTS))
def test_programs_as_eager(compiler: Compiler, part: int):
    for number in range(part, NUM_PROGRAMS, NUM_TESTS):
        text = generate(0, number)
        verdict = judge(text, compiler)
        assert verdict.status not in BAD, f"python -m tests.fuzz_steps --show {number}: {verdict.detail}\n{text}"
