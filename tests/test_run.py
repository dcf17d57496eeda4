"""``gradc run``: a script as it is, with what it trains compiled, and a summary; ``explain`` and ``report`` of scripts."""

import io
import re
import sys
from pathlib import Path

import pytest

from gradc.cli import main
from gradc.journal import Uncompiled
from gradc.scripts.summary import Outcome

EXAMPLES = Path(__file__).parent.parent / "examples"

SCRIPT = """
import argparse, copy, sys
import torch
from torch import nn

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
    average = copy.deepcopy(model)
    with torch.no_grad():
        average[0].weight.zero_()
    print(f"{loss.item()!r} {average.eval()(torch.ones(1, 8)).sum().item()!r} {model[0].weight.sum().item()!r}")
    return 3

if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return str(tmp_path / "train.py")


def test_a_script_with_main_and_arguments_prints_what_it_prints_in_eager(script, capsys, monkeypatch):
    printed = io.StringIO()
    monkeypatch.setattr(sys, "argv", [script, "--steps", "70"])
    monkeypatch.setattr(sys, "stdout", printed)
    space = {"__name__": "train"}
    exec(compile(SCRIPT, script, "exec"), space)
    space["main"]()
    monkeypatch.undo()

    monkeypatch.setattr("gradc.scripts.run._EAGER_SECONDS", 0.0)
    monkeypatch.setattr("gradc.environment._MOST_LOAD", float("inf"))
    assert main(["run", script, "--steps", "70"]) == 3
    done = capsys.readouterr()
    assert done.out == printed.getvalue()
    head, compiled, times, rest = done.err.splitlines()
    assert head.startswith("gradc run: done in ") and compiled.startswith("  compiled: Sequential, AdamW; compiling took ")
    assert re.fullmatch(r"  a step: .* ms \(.* to .*, of 5\) in eager, .* of 6\d\) compiled: .* times as (fast|long)", times)
    assert rest == "  nothing ran eagerly"


@pytest.mark.parametrize("name", ["digits", "gradient_penalty", "lora"])
def test_examples_train_the_same(name, capsys, monkeypatch):
    """Each compares with eager what it gives to torch.compile, which is gradc then, and to gradc."""
    monkeypatch.setattr("gradc.scripts.run._EAGER_SECONDS", 0.0)
    monkeypatch.setattr("gradc.scripts.run._FEWEST_EAGER", 1)
    assert main(["run", str(EXAMPLES / f"{name}.py"), "--short"]) == 0
    done = capsys.readouterr()
    rows = r"^eager +(\S+) +yes .*^torch.compile +\1 +yes +0 .*^gradc +\1 +yes +0 "
    assert re.search(rows, done.out, re.MULTILINE | re.DOTALL), done.out
    head, compiled, *_ = done.err.splitlines()
    assert head.startswith("gradc run: done in ") and compiled.startswith("  compiled: what the script gives to torch.compile")


def test_a_script_that_ends_before_anything_is_compiled(script, capsys, monkeypatch):
    monkeypatch.setattr("gradc.scripts.run._FEWEST_EAGER", 50)
    assert main(["run", script, "--steps", "3"]) == 3
    assert capsys.readouterr().err.splitlines()[1:] == [
        "  Nothing was compiled: the first 5 to 50 steps run in eager, and it made 3. Give it more."
    ]


def test_a_script_that_raises_shows_its_own_traceback(tmp_path, capsys):
    (tmp_path / "raises.py").write_text("def step():\n    raise KeyError('mine')\nstep()\n")
    assert main(["run", str(tmp_path / "raises.py")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f'Traceback (most recent call last):\n  File "{tmp_path}/raises.py", line 3, in <module>')
    assert said.endswith("KeyError: 'mine'\n") and "runpy" not in said and "gradc" not in said.replace(str(tmp_path), "")


def test_explain_and_report_take_scripts(script, tmp_path, capsys):
    assert main(["explain", script]) == 0
    assert capsys.readouterr().out.startswith("1 graph, 0 graph breaks, 0 fallbacks, 0 recaptures\n")
    page = tmp_path / "r.html"
    assert main(["report", script, "--no-check", "--output", str(page)]) == 0
    assert "addmm" in page.read_text() and capsys.readouterr().out.startswith(f"{page}: 2 graphs, ")


def test_the_summary_says_what_ran_eagerly():
    left_out = Uncompiled(True, "builtin print", "", "train.py:7 in step: print(x)", "Print after the step.")
    text = str(Outcome(90, 4.0, (0.3,) * 9, (0.1,) * 80, 0.5, ("Net",), (left_out,)))
    assert text == (
        "gradc run: done in 4.0 s.\n"
        "  compiled: Net; compiling took 0.5 s\n"
        "  a step: 300 ms (300 to 300, of 9) in eager, 100 ms (100 to 100, of 80) compiled: 3.00 times as fast\n"
        "  graph break: builtin print\n"
        "    train.py:7 in step: print(x)\n"
        "    Print after the step."
    )
    doubted = str(Outcome(90, 4.0, (0.3,) * 9, (0.1,) * 80, 0.5, ("Net",), (), doubt="The machine was busy."))
    assert doubted.endswith(": 3.00 times as fast\n  The machine was busy.\n  nothing ran eagerly")
    few = str(Outcome(3, 1.0, (0.3,), (0.1,), 0.5, ("Net",), ()))
    assert "too few steps to tell" in few
