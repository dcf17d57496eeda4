"""The command line: what each command prints, and that a mistake gets an answer instead of a traceback."""

import json
import subprocess
import sys

import pytest
import torch

from gradc import environment, native
from gradc.cli import main
from gradc.parity.against import Compiler
from tests import forked

STEP = """
import torch

def right():
    torch.manual_seed(1)
    w = torch.randn(3, 3, requires_grad=True)
    (torch.randn(4, 3) @ w).sin().sum().backward()
    return w.grad

def count(calls=[]):
    calls.append(1)
    return len(calls)
"""


@pytest.fixture
def step_file(tmp_path):
    path = tmp_path / "step_of_mine.py"
    path.write_text(STEP)
    return path


def test_check_finds_no_difference(step_file, capsys):
    assert main(["check", f"{step_file}:right"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 values compared in 1 step (3 runs): all equal eager, bit for bit.\ngraph break: ")
    assert "code: torch.manual_seed(1)" in out


def test_check_finds_a_difference(step_file, capsys, monkeypatch):
    turned = Compiler("turned", lambda step: lambda: -step(), is_counted=False)
    monkeypatch.setattr("gradc.cli.checks.compiler_of", lambda against, backend: turned)
    assert main(["check", f"{step_file}:right"]) == 1
    assert "Against turned: 4 values compared in 1 step (5 runs): 1 wrong.\n  wrong: result: off by " in capsys.readouterr().out


def test_check_proves_nothing_where_eager_is_not_reproducible_or_nothing_is_compiled(step_file, capsys):
    assert main(["check", f"{step_file}:count"]) == 2
    out = capsys.readouterr().out
    assert "The step itself is not reproducible in eager, which gives 1 value " in out and "Nothing was compiled" in out


def test_a_step_may_return_the_loss_it_differentiated(tmp_path, capsys):
    path = tmp_path / "step_with_loss.py"
    path.write_text(
        """
import torch

def step():
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    loss = model(torch.randn(4, 3)).square().sum()
    loss.backward()
    return loss, model.weight.grad
"""
    )
    assert main(["check", f"{path}:step"]) == 0
    assert capsys.readouterr().out.startswith("5 values compared in 1 step (3 runs): all equal eager, bit for bit.\n")


def test_explain(step_file, capsys):
    assert main(["explain", f"{step_file}:count"]) == 0
    assert capsys.readouterr().out.startswith("0 graphs, 0 graph breaks, 0 fallbacks, ")


@pytest.mark.parametrize("words", [[], ["--with-inputs"]])
def test_programs(step_file, tmp_path, capsys, words):
    assert main(["programs", f"{step_file}:right", "--output", str(tmp_path / "saved"), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].endswith(".py: 5 calls")
    assert len(list((tmp_path / "saved").glob("*.py"))) == 2 and len(list((tmp_path / "saved").glob("*.pt"))) == 2 * len(words)
    made = subprocess.run([sys.executable, lines[0].partition(":")[0]], capture_output=True, text=True)
    assert made.stdout.startswith("tensor("), made.stderr


def test_bench_lists_the_benchmarks(capsys):
    assert main(["bench", "list"]) == 0
    assert "gradc bench linear_tanh\n" in capsys.readouterr().out


def test_bench_needs_a_checkout(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("gradc.cli.rest.BENCHMARKS", tmp_path)
    assert main(["bench", "--only", "mlp"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gradc: error: gradc bench: the benchmarks are not part of the installed package")
    assert str(tmp_path) in error and "Run it in a checkout that was installed with: pip install" in error


def bench(out, *arguments):
    """``gradc bench`` in a process of its own, for it changes settings of the whole process."""
    return forked.python("-m", "gradc.cli", "bench", *arguments, "--seconds", "0.05", "--out", out)


def test_bench_merges_what_it_measures(tmp_path):
    store = tmp_path / "benchmarks" / "threads-1.json"
    for model in ("linear", "ppo"):
        done = bench(tmp_path, "--only", model, "--contender", "gradc")
        assert done.returncode == 0, done.stdout + done.stderr
    entries = json.loads(store.read_text())
    assert list(entries) == ["Linear+Tanh", "PPO update"]
    assert [result["contender"] for result in entries["PPO update"]["results"]] == ["eager", "gradc"]
    assert all(not result["error"] and result["ratio"] > 0 for result in entries["Linear+Tanh"]["results"])
    assert (tmp_path / "benchmarks.png").exists()
    report, before = (tmp_path / "benchmarks.md").read_text(), store.read_text()
    assert "`gradc bench --only ppo --contender gradc" in report and "| Linear+Tanh | gradc |" in report
    assert bench(tmp_path, "--only", "linear,ppo", "--resume").returncode == 0
    assert store.read_text() == before


def test_bench_of_whole_steps_stores_what_it_measures(tmp_path):
    done = bench(tmp_path, "step", "--only", "linear")
    assert done.returncode == 0, done.stdout + done.stderr
    (entry,) = json.loads((tmp_path / "benchmarks" / "whole-steps-1.json").read_text()).values()
    found = {result["contender"]: result for result in entry["results"]}
    assert list(found) == ["eager", "gradc: model", "gradc: model, optimizer", "gradc: step"]
    assert all(result["is_eagers"] and result["ratio"] > 0 and not result["fallbacks"] for result in found.values())
    assert entry["command"].startswith("gradc bench step --only linear") and entry["machine"]
    report, before = (tmp_path / "benchmarks.md").read_text(), (tmp_path / "benchmarks" / "whole-steps-1.json").read_text()
    assert "| Linear+Tanh | gradc: step |" in report and (tmp_path / "whole-steps.png").exists()
    assert bench(tmp_path, "step", "--only", "linear", "--resume").returncode == 0
    assert (tmp_path / "benchmarks" / "whole-steps-1.json").read_text() == before


def test_bench_names_the_models_there_are(tmp_path):
    done = bench(tmp_path, "--only", "elephant")
    assert done.returncode == 2
    assert "no model's name contains 'elephant'. There are: 64-layer MLP, Linear+Tanh" in done.stderr


def test_env_says_what_gradc_runs_on(capsys):
    assert main(["env"]) == 0
    facts = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert facts["torch"].strip() == torch.__version__
    assert facts["executor"].strip() == str(native.status())
    assert torch.backends.cpu.get_cpu_capability() in facts["cpu kernels"] and facts["gpu"].strip()


@pytest.mark.parametrize(
    ("executor", "extension"),
    [("native", "extension for it"), ("interpreter", "no extension"), ("none", "extension for another torch")],
)
def test_version_names_torch_the_extension_and_the_cpu(executor, extension, capsys, monkeypatch):
    monkeypatch.setattr(native, "status", lambda: native.Status(executor, ""))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    with pytest.raises(SystemExit):
        main(["--version"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"gradc {environment.installed_version()}, torch {torch.__version__}, {extension}, CPU ")
    assert said.endswith(f"{torch.backends.cpu.get_cpu_capability()} with bf16")
