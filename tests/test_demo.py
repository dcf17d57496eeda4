"""The demo, shortened: gradc's training is eager's bit for bit, and torch.compile's is not."""

import dataclasses
import itertools
import re

import pytest

import gradc
from gradc import ConfigError
from gradc.demo import main as demo


def test_table_and_plot(tmp_path, capsys):
    gradc.counters.clear()
    runs = demo.run(epochs=1, backends=("aot_eager", "gradc"), out=str(tmp_path / "new"))
    assert [run.is_compiled for run in runs] == [False, True, True], [run.nodes for run in runs]
    assert gradc.counters["optim"] == {"native steps": 11} and not gradc.counters["fallbacks"]  # the whole step is compiled
    assert {run.name: run.bitwise for run in runs} == {"eager": True, "torch.compile aot_eager": False, "gradc": True}
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "largest param diff  bitwise eager  ms/step  eager = 1  compile s" in out
    assert re.findall(r"^(.+): \d+ s$", out, re.MULTILINE) == [run.name for run in runs]  # progress, without a terminal
    assert [line.split()[0] for line in out.splitlines() if "%" in line] == ["eager", "torch.compile", "gradc"]


def test_a_slow_machine_trains_less_and_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "seconds_per_step", lambda digits: 2.5)
    monkeypatch.setattr(demo.environment, "has_bf16", lambda: False)
    (eager,) = demo.run(backends=("eager",), out=str(tmp_path))
    out, err = capsys.readouterr()
    assert len(eager.losses) == 2 * 11 and not err  # 70 s / (11 steps of 2.5 s); no progress bar without a terminal
    assert out.startswith("gradc compiles PyTorch training and keeps eager's gradients, bit for bit.")
    assert "This CPU has no instructions for bfloat16." in out
    assert "Shortened to 2 of 20 epochs: a step takes 2.50 s here." in out


def test_without_a_compiler_torch_compile_is_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "has_compiler", lambda: False)  # tests/try_wheel.py really has none
    runs = demo.run(epochs=1, backends=("inductor", "gradc"), out=str(tmp_path))
    assert [(run.name, run.bitwise) for run in runs] == [("eager", True), ("gradc", True)]
    assert "torch.compile: left out, since there is no C++ compiler here.\n" in capsys.readouterr().out


def test_torch_compile_is_left_out_where_it_would_take_too_long(tmp_path):
    (eager,) = demo.run(epochs=1, backends=("eager",), out=str(tmp_path))
    slow = [eager, dataclasses.replace(eager, name="torch.compile aot_eager", compile_seconds=20.0)]
    why = demo.why_left_out("inductor", slow, limit=160)
    assert why == "compiling would take about 160 s here. To see it: --backend inductor"
    assert not demo.why_left_out("inductor", slow, limit=300) and not demo.why_left_out("gradc", slow, limit=0)


def test_a_fast_machine_trains_all_epochs(monkeypatch):
    monkeypatch.setattr(demo, "seconds_per_step", lambda digits: 0.01)
    assert demo.fitting_epochs(demo.load_digits(), 4) == demo.MOST_EPOCHS_BY_DEFAULT


def test_a_run_that_was_not_compiled_is_no_success(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "compiler", lambda backend: lambda step: step)
    (_, run) = demo.run(epochs=1, backends=("gradc",), out=str(tmp_path))
    assert run.bitwise and not run.is_compiled
    assert re.search("^gradc .*not compiled", capsys.readouterr().out, re.MULTILINE)


def test_a_few_eager_steps_to_compare_times_are_no_failure(tmp_path, monkeypatch):
    def mostly(step):
        compiled, calls = gradc.compile(step), itertools.count()
        return lambda *batch: (step if next(calls) % 4 == 3 else compiled)(*batch)

    monkeypatch.setattr(demo, "compiler", lambda backend: mostly)
    (_, run) = demo.run(epochs=1, backends=("gradc",), out=str(tmp_path))
    assert run.bitwise and run.is_compiled and len(set(run.nodes)) == 2


def test_folder_that_cannot_be_written_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write there: .*\n  Name a folder"):
        demo.run(epochs=1, out=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot write there"):
        demo.run(epochs=1, out=str(tmp_path / "file" / "below"))
