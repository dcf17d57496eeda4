"""The fuzzer itself: its programs are reproducible and vary; and gradc runs some of them as eager does, each day others."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gradc import native
from tests.compilers import GRADC, Compiler
from tests.fuzz.chains import generate_chain
from tests.fuzz.generate import generate
from tests.fuzz.judge import BAD, is_undefined, judge, kind_of, shrink
from tests.fuzz.statements import TABLE, WITH_GRADIENTS, WITH_REPEATS
from tests.fuzz.straight import as_step

NUM_PROGRAMS, NUM_CHAINS, NUM_REPEATS, NUM_STRAIGHT, NUM_TESTS = 200, 80, 40, 60, 8
ONE_IN = 5  # comes on a day
ENDS_THE_PROCESS_IN_EAGER = (39,)  # a hook on a view whose base was changed through detach(): torch itself segfaults


def test_same_seed_same_program():
    assert generate(0, 7).source() == generate(0, 7).source()
    assert generate(0, 7).source() != generate(1, 7).source()


def test_chains_vary():
    assert generate_chain(0, 7).source() == generate_chain(0, 7).source() != generate_chain(1, 7).source()
    chains = [generate_chain(0, number) for number in range(200)]
    text = "\n".join(f"{chain.inputs} {chain.source()}" for chain in chains)
    for feature in (
        "(0,)",
        "transposed",
        "gaps",
        "expanded",
        "special",
        "tiny",
        "bfloat16",
        "float64",
        "threads(2)",
        "addcmul_",
        ".sum(",
    ):
        assert feature in text, feature


def test_programs_vary():
    text = "\n".join(generate(0, number).source() for number in range(60))
    for feature in ("autocast", "no_grad", "dynamic=True", "graph_break", "mul_", "view", "register_hook", "checkpoint"):
        assert feature in text, feature


def test_wrong_compiler_is_found_and_its_program_shrunk():
    def wrap(function, **options):
        return lambda *args: {key: value * 1.5 for key, value in function(*args).items()}

    wrong = Compiler("wrong", wrap)
    program = next(p for p in (generate(0, n) for n in range(50)) if judge(p, wrong).status == "wrong")
    smallest = shrink(program, wrong, seconds=20)
    assert judge(smallest, wrong).status == "wrong"
    assert len(smallest.source().splitlines()) < len(program.source().splitlines())


def test_a_median_along_an_expanded_dimension_is_undefined():
    """Eager's own kernel reads other memory."""
    made = generate(0, 0)
    along = dataclasses.replace(made, inputs={"a": "leaf(3, 1)"}, body=("b = a.expand(3, 4)", "c = b.median({}).values"))
    along = dataclasses.replace(along, outputs={"p": "c"}, driver=("out = f(a)",), options="", changes=made.changes)
    undefined, defined = (dataclasses.replace(along, body=(along.body[0], along.body[1].format(dim))) for dim in (1, 0))
    assert is_undefined(undefined) and not is_undefined(defined)


def test_kind_of_a_difference():
    assert kind_of("result[3][1]: values differ (by up to 1)") == "values differ"
    assert kind_of("raises NameError: name 's16' is not defined") == "raises NameError"


@pytest.mark.parametrize("part", range(NUM_TESTS))
def test_chains_as_eager(compiler: Compiler, part: int, of_the_day: Any):
    for number in of_the_day(range(part, NUM_CHAINS, NUM_TESTS), ONE_IN):
        chain = generate_chain(0, number)
        verdict = judge(chain, compiler)
        assert verdict.status not in BAD, f"python -m tests.fuzz --chains --show {number}: {verdict.detail}\n{chain.source()}"


@pytest.mark.parametrize("part", range(NUM_TESTS))
def test_repeats_as_eager(compiler: Compiler, part: int, of_the_day: Any):
    for number in of_the_day(range(part, NUM_REPEATS, NUM_TESTS), ONE_IN):
        program = generate(0, number, WITH_REPEATS)
        verdict = judge(program, compiler)
        shown = f"python -m tests.fuzz --repeats --seed 0 --show {number}"
        assert verdict.status not in BAD, f"{shown}: {verdict.detail}\n{program.source()}"


@pytest.mark.parametrize("part", range(NUM_TESTS))
def test_steps_as_eager(part: int, of_the_day: Any):
    for number in of_the_day(range(part, NUM_STRAIGHT, NUM_TESTS), ONE_IN):
        program = as_step(generate(0, number, WITH_GRADIENTS if number % 2 else TABLE))
        verdict = judge(program, GRADC)
        assert verdict.status not in BAD, f"program {number} of seed 0: {verdict.detail}\n{program.source()}"


@pytest.mark.skipif(not native.is_built(), reason="joined plans are the extension's")
def test_many_of_these_steps_end_as_one_plan():
    before = native.extension.StraightLoss.num_joined()
    for number in range(10):
        judge(as_step(generate(0, number, WITH_GRADIENTS if number % 2 else TABLE)), GRADC)
    assert native.extension.StraightLoss.num_joined() - before >= 9


@pytest.mark.parametrize("part", range(NUM_TESTS))
def test_programs_as_eager(compiler: Compiler, part: int, of_the_day: Any):
    for number in of_the_day(range(part, NUM_PROGRAMS, NUM_TESTS), ONE_IN):
        if number in ENDS_THE_PROCESS_IN_EAGER:
            continue
        program = generate(0, number)
        verdict = judge(program, compiler)
        assert verdict.status not in BAD, f"python -m tests.fuzz --show {number} --seed 0: {verdict.detail}\n{program.source()}"
