"""The harness of tests/world sees what it is for: a difference, an error, an eager run that is not reproducible, a hang."""

import itertools
import sys
import time

import pytest
import torch
from torch import nn

import gradc
from gradc.backends import lookup_backend
from tests.compilers import GRADC, Compiler
from tests.world.__main__ import How, _run, results
from tests.world.harness import settling
from tests.world.harness.run import NUM_STEPS, Result, Verdict, run
from tests.world.harness.settling import Settled, settle
from tests.world.harness.table import Record, page, read, write
from tests.world.harness.training import WAYS, Training, Way, loop


def small(way: Way, loss=None) -> Training:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.2), nn.BatchNorm1d(4))
    batches = [(torch.randn(5, 3),) for _ in range(2)]
    return loop(way, model, loss or (lambda model, x: model(x).pow(2).sum()), batches)


def perturbed(program):
    run_it = lookup_backend("eager")(program)
    return lambda args: [out * (1 + 1e-6) if out is not None and out.is_floating_point() else out for out in run_it(args)]


@pytest.mark.parametrize("way", WAYS.values(), ids=lambda way: way.name)
def test_a_small_model_is_eagers_each_way(way):
    result = run(small, way)
    assert result.verdict is Verdict.BITWISE, result.differences
    assert result.num_graphs > 0 and result.ratio > 0
    assert not result.fallbacks


def test_where_the_verdict_is_all_nothing_settled_is_timed():
    result = run(small, WAYS["model"], is_timed=False)
    assert result.verdict is Verdict.BITWISE and result.first_s > 0
    assert result.ratio is None and result.settled is None


def test_settled_steps_are_compared_with_eagers_of_the_same_number(monkeypatch):
    made = {}
    monkeypatch.setattr("tests.world.harness.run._ratio", lambda *args: made.update(before=dict(made)) or 1.0)

    def counted(way):
        training = small(way)
        made[way.name] = 0

        def step():
            made[way.name] += 1
            return training.step()

        return Training(step, training.seen)

    result = run(counted, WAYS["model"])
    assert made["before"] == {"eager": result.settled.num_steps, "model": result.settled.num_steps}
    assert result.settled.num_steps > NUM_STEPS


def test_a_backend_that_perturbs_is_seen():
    gradc.register_backend("perturbed", perturbed)
    way = Way("model", Compiler("gradc:perturbed", lambda model: gradc.compile(model, backend="perturbed")))
    result = run(small, way)
    assert result.verdict is Verdict.DIFFERS
    assert any("grad" in difference for difference in result.differences)


def test_an_error_of_the_compiled_run_is_its_verdict():
    def refuse(model):
        raise LookupError("no such compiler")

    result = run(small, Way("model", Compiler("gradc_refusing", refuse)))
    assert result.verdict is Verdict.RAISES
    assert "LookupError: no such compiler" in result.differences


def test_what_eager_does_not_do_twice_is_no_verdict():
    numbers = itertools.count()
    result = run(lambda way: small(way, lambda model, x: (model(x) + next(numbers)).pow(2).sum()), WAYS["model"])
    assert result.verdict is Verdict.IRREPRODUCIBLE


def test_a_case_that_does_not_train_in_eager_is_an_error_of_its_own():
    with pytest.raises(RuntimeError, match="does not train in eager"):
        run(lambda way: small(way, lambda model, x: model(x[:, :2])), WAYS["model"])


def test_a_process_that_hangs_is_ended():
    begin = time.monotonic()
    code, said = _run([sys.executable, "-u", "-c", "import time; print('begun'); time.sleep(60)"], timeout=3)
    assert code is None and said == "begun\n"
    assert time.monotonic() - begin < 30


def test_what_is_written_is_read_again_and_shown(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.world.harness.table.RECORDS", tmp_path)
    result = Result(
        Verdict.DIFFERS, 2, ("a", "b"), num_graphs=3, fallbacks={"sparse gradient": 4}, settled=Settled(30, True), ratio=0.5
    )
    record = Record("A case", {"torch": "2"}, dict.fromkeys(WAYS, result))
    write("case", record)
    assert read(tmp_path / "case.json") == record
    shown = page({"case": record})
    assert "| A case | differs (2) |" in shown
    assert "| A case | ran eagerly | sparse gradient | 4 | 4 | 4 |" in shown


def test_a_compiler_gets_the_model_or_the_step_never_both():
    target = nn.Linear(2, 2)
    counted = []
    compiler = Compiler("counted", lambda target: counted.append(target) or target)
    Way("model", compiler).model(target), Way("model", compiler).step(small)
    Way("step", compiler, compiles_step=True).model(target), Way("step", compiler, compiles_step=True).step(small)
    assert counted == [target, small]
    assert WAYS["model"].compiler is GRADC


def test_steps_are_made_until_nothing_new_is_compiled(monkeypatch):
    monkeypatch.setattr(settling, "is_undecided", lambda: False)
    counted = iter([0, 1, 1, 2, 2, 2, 2, 2, 2])
    monkeypatch.setattr(settling, "_num_compiled", lambda: next(counted))
    assert settle(lambda: None, num_steps=4) == Settled(4 + 8, True)


def test_steps_are_made_until_each_trial_is_decided(monkeypatch):
    answers = iter([True] * 40)
    monkeypatch.setattr(settling, "is_undecided", lambda: next(answers, False))
    assert settle(lambda: None) == Settled(5 + 40, True)


def test_what_never_settles_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(settling, "CLOCK", itertools.count().__next__)
    monkeypatch.setattr(settling, "_num_compiled", itertools.count().__next__)
    assert settle(lambda: None) == Settled(int(settling.SECONDS), False)


def test_what_is_over_the_bars_is_said():
    slow = Result(Verdict.BITWISE, first_eager_s=0.4, first_s=5.5, settled=Settled(9, True), ratio=1.25)
    fine = Result(Verdict.BITWISE, first_eager_s=0.6, first_s=5.5, settled=Settled(9, True), ratio=1.05)
    shown = page({"case": Record("A case", {}, {"model": slow, "captured": fine, "dynamo": fine})})
    assert "- A case, model: a settled step takes 1.25 of eager's." in shown
    assert "- A case, model: the first step takes 5.5 s. Dynamo alone: 5.5 s." in shown and "Not timed" not in shown
    assert "A case, captured" not in shown


def test_results_come_case_by_case_however_many_processes_there_are(monkeypatch):
    monkeypatch.setattr("tests.world.__main__.in_a_process", lambda case, way, how: f"{case} {way}")
    expected = [(case, {way: f"{case} {way}" for way in ("model", "step")}) for case in "abc"]
    assert list(results("abc", ("model", "step"), How(1.0), jobs=2)) == expected


def test_what_was_not_timed_is_not_said_to_be_within_the_bars():
    untimed = Result(Verdict.BITWISE, first_eager_s=0.1, first_s=9.0)
    shown = page({"case": Record("A case", {}, {"model": untimed, "captured": untimed})})
    assert "Not timed: 2 of 2 trainings.\n\nNothing of what was timed." in shown
