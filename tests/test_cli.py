"""The command line: what each command prints, and that a mistake gets an answer instead of a traceback."""

import pytest

from gradc.cli import main

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
    assert capsys.readouterr().out == "2 values compared: all are eager's, bit for bit.\n"


def test_check_finds_a_difference(step_file, capsys):
    assert main(["check", f"{step_file}:count"]) == 1
    assert "2 values compared: 1 are not eager's.\nvalue " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "step.py"], "gradc check step.py: expected FILE.py:FUNCTION, for example train.py:step."),
        (["check", "nowhere.py:step"], "gradc check nowhere.py:step: there is no file nowhere.py."),
        (["explain", "nowhere.py:step"], "gradc explain nowhere.py:step: there is no file nowhere.py."),
        (["demo", "--epochs", "0"], "--epochs 0: use a whole number from 1 to 200."),
        (["demo", "--backend", "magic"], "--backend magic: unknown. Use one or more of: eager, aot_eager, inductor,"),
        (["bench", "nothing"], "gradc bench nothing: there is no such benchmark. There are: "),
    ],
)
def test_mistakes(arguments, message, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"gradc: error: {message}")


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
    assert capsys.readouterr().out == "3 values compared: all are eager's, bit for bit.\n"


def test_explain(step_file, capsys):
    assert main(["explain", f"{step_file}:count"]) == 0
    assert capsys.readouterr().out.startswith("0 graphs, 0 graph breaks, 0 fallbacks, ")


def test_check_lists_the_functions_there_are(step_file, capsys):
    assert main(["check", f"{step_file}:left"]) == 2
    assert "has no function 'left'. It has: right, count." in capsys.readouterr().err


def test_bench_lists_the_benchmarks(capsys):
    assert main(["bench"]) == 0
    assert "gradc bench linear_tanh\n" in capsys.readouterr().out


def test_epochs_that_are_no_number(capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--epochs", "many"])
    assert "use a whole number, not 'many'" in capsys.readouterr().err
