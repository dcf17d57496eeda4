"""The fuzzer of Python itself: its programs are reproducible, run and vary; and gradc runs some of them as eager does."""

from __future__ import annotations

import ast

import pytest
import torch

from tests.compilers import EAGER, Compiler
from tests.fuzz_python.generate import generate
from tests.fuzz_python.idioms import IDIOMS
from tests.fuzz_python.judge import BAD, judge, kind_of, shrink
from tests.fuzz_python.observe import Recorder, differences

NUM_PROGRAMS, NUM_TESTS = 16, 2
WRONG = """
from tests.fuzz_python.toolbox import *
SEEN = []

def f(x):
    SEEN.append(1)
    return {"a": [x.sin(), len(SEEN)]}

def drive(compile, call):
    run = compile(f)
    unneeded = 3
    call(run, torch.ones(3, requires_grad=True))
    call(run, torch.ones(2, requires_grad=True))
"""


def wrong(change):
    """A compiler that makes another function."""
    return Compiler("wrong", lambda function, **options: change(function))


def test_same_seed_same_program():
    assert generate(0, 7) == generate(0, 7) != generate(1, 7)


def test_each_idiom_comes_and_can_be_read():
    texts = [generate(0, number) for number in range(1500)]
    for text in texts[:200]:
        ast.parse(text)
    assert not any("$" in text for text in texts)
    said = "\n".join(texts)
    for idiom in IDIOMS:
        first = idiom.lines[0].split("$")[0].strip()
        assert first in said, idiom.title


def test_programs_run_in_eager_and_few_end_early():
    raising = 0
    for number in range(100):
        snapshots = Recorder(EAGER).run(generate(0, number))
        raising += any(snapshot.raised for snapshot in snapshots)
    assert 0 < raising < 30


def twice(function):
    return lambda x: function(x) and function(x)


def not_a_leaf(function):
    return lambda x: {"a": [function(x)["a"][0].detach(), len(SEEN_OF(function))]}


def SEEN_OF(function):
    return function.__globals__["SEEN"]


def printing(function):
    def call(x):
        print("hello")
        return function(x)

    return call


def drawing(function):
    def call(x):
        torch.rand(1)
        return function(x)

    return call


def raising(function):
    def call(x):
        if len(x) == 2:
            raise ValueError("two")
        return function(x)

    return call


def keeping(function):
    return lambda x: function(x) | {"b": x}


@pytest.mark.parametrize("change", [twice, not_a_leaf, printing, drawing, raising, keeping])
def test_what_is_not_eagers_is_seen(change):
    verdict = judge(WRONG, wrong(change))
    assert verdict.status == "wrong", verdict


def test_a_wrong_program_is_shrunk():
    smallest = shrink(WRONG, wrong(printing), seconds=20)
    assert judge(smallest, wrong(printing)).status == "wrong"
    assert "unneeded" not in smallest and smallest.count("call(") == 1


def test_what_is_not_counted_is_seen():
    assert judge(WRONG, Compiler("gradc_for_nothing", EAGER.wrap)).status == "uncounted"


def test_eager_is_like_itself():
    text = generate(0, 3)
    assert differences(Recorder(EAGER).run(text), Recorder(EAGER).run(text)) == []


def test_kind_of_a_difference():
    assert kind_of("call 2: result[kept][0] version: '1', eager: '2'") == "result version"
    assert kind_of("call 0: raises 'ValueError: n is 3', eager: 'nothing'") == "raises 'ValueError: n is 0', eager: 'nothing'"


@pytest.mark.parametrize("part", range(NUM_TESTS))
def test_programs_as_eager(compiler: Compiler, part: int):
    for number in range(part, NUM_PROGRAMS, NUM_TESTS):
        text = generate(0, number)
        verdict = judge(text, compiler)
        assert verdict.status not in BAD, f"python -m tests.fuzz_python --show {number}: {verdict.detail}\n{text}"


LATE = """
import time
import weakref

from tests.fuzz_python.toolbox import *


class Thing:
    pass


def f(x):
    return x.sin()


def drive(compile, call):
    thing = Thing()
    kept = weakref.ref(thing, lambda _: time.sleep(1.5))
    del thing
    call(compile(f), torch.ones(2))
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_alarm_that_python_passes_over_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the callback of a weak reference it raises nothing: the program went on, and what differed was called wrong."""
    monkeypatch.setattr("tests.fuzz_python.judge.TIMEOUT_SECONDS", 1)
    assert judge(LATE).status == "hang"
