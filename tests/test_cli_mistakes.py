"""Wrong usage of the command line: at most two lines, which say what, where and what to do; before torch is imported where
that can be. The cases of the first table run in one process that has no torch.
"""

import json
import os
import shlex
import subprocess
import sys

import pytest

from gradc.backends import list_backends
from gradc.cli import main
from gradc.options import BACKENDS

FILE = """
import torch

def right():
    return torch.ones(2, requires_grad=True).sum()

def takes(model, batch, scale=1.0):
    return model(batch) * scale

def raises():
    return helper({})

def helper(known):
    return known["mine"]
"""
SCRIPT = """
import torch
torch.ones(3).sum()
print("nothing trained")
"""
WITHOUT_TORCH = {
    "gradc": "gradc: error: which command? check, run, explain, report, programs, demo, env or bench. See gradc --help.",
    "gradc checks train.py:right": "gradc: error: there is no command 'checks'. Did you mean check? See gradc --help.",
    "gradc check": (
        "gradc check: error: the following arguments are required: FILE.py:FUNCTION. See gradc check --help."
    ),
    "gradc check train.py:right --stpes=3": (
        "gradc check: error: it does not take --stpes=3. Did you mean --steps? See gradc check --help."
    ),
    "gradc check train.py:right --steps many": (
        "gradc check: error: argument --steps: use a whole number, not 'many'. See gradc check --help."
    ),
    "gradc check train.py:right --steps 0": "gradc: error: gradc check --steps 0: that is none. Use 1 or more.",
    "gradc check trains.py:right": (
        "gradc: error: gradc check trains.py:right: there is no file trains.py; there is train.py."
    ),
    "gradc run nowhere/at/all.py": (
        "gradc: error: gradc run nowhere/at/all.py: there is no file nowhere/at/all.py in HERE/nowhere/at."
    ),
    "gradc check train.py:left": (
        "gradc: error: gradc check train.py:left: train.py has no function 'left'. It has: right, takes, raises, helper."
    ),
    "gradc explain train.py:takes": (
        "gradc: error: gradc explain train.py:takes: takes(model, batch) takes arguments, and nobody gives it any.\n"
        "  Name a function without: def run(): return takes(...), or use gradc.explain(step)(*args) in Python."
    ),
    "gradc check train.py:right --backend nonsense": (
        "gradc: error: gradc check: gradc has no backend 'nonsense'. Use auto, eager, inductor or replay;"
        " one of your own is registered in train.py."
    ),
    "gradc check train.py:right --backend replay --against inductor": (
        "gradc: error: gradc check --against inductor --backend replay: --backend is for gradc. Leave one out."
    ),
    "gradc check broken.py": (
        "gradc: error: gradc check broken.py: line 2 of broken.py is not Python: invalid syntax."
    ),
    "gradc check notes.md": (
        "gradc: error: gradc check notes.md: notes.md is not a Python file."
        " Expected FILE.py:FUNCTION, for example train.py:step, or a script, FILE.py."
    ),
    "gradc programs train.py": (
        "gradc: error: gradc programs train.py: expected FILE.py:FUNCTION, for example train.py:step."
    ),
    "gradc run train.py:right": (
        "gradc: error: gradc run train.py:right: it runs scripts."
        " For a function: gradc explain train.py:right."
    ),
    "gradc report": (
        "gradc: error: gradc report: of what? Name FILE.py:FUNCTION or FILE.py; or two pages, with --diff A B."
    ),
    "gradc report train.py:right --output none/r.html": (
        "gradc: error: gradc report --output none/r.html: there is no folder none."
    ),
    "gradc demo --epochs 0": "gradc: error: --epochs 0: use a whole number from 1 to 200.",
    "gradc bench nothing": "gradc: error: gradc bench nothing: there is no such benchmark. There are: ",
}  # fmt: skip
WITH_TORCH = {
    "gradc check train.py:right --against nonsense": "gradc: error: against='nonsense': torch.compile has no such backend. ",
    "gradc check train.py:raises": (
        "gradc: error: gradc check: train.py:raises raises KeyError: 'mine' in eager\n"
        "  at train.py:14 in helper. The traceback: python -c 'import train as m; m.raises()'\n"
    ),
    "gradc explain train.py:raises": (
        "gradc: error: gradc explain: train.py:raises raises KeyError: 'mine'\n"
        "  at train.py:14 in helper. The traceback: python -c 'import train as m; m.raises()'\n"
    ),
    "gradc check script.py": (
        "gradc: error: gradc check script.py: it makes no step of an optimizer, so there is nothing to compare.\n"
    ),
}
RUN_ALL = """
import contextlib, io, json, shlex, sys
sys.modules["torch"] = None
from gradc.cli import main

found = {}
for command in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            status = main(shlex.split(command)[1:])
        except SystemExit as end:
            status = end.code
    found[command] = status, said.getvalue()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "train.py").write_text(FILE)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "broken.py").write_text("import torch\ndef def\n")
    (folder / "notes.md").write_text("# Notes\n")
    return folder


def test_what_is_seen_without_torch_is_said_without_it(folder):
    command = [sys.executable, "-c", RUN_ALL, json.dumps([*WITHOUT_TORCH, "gradc --help", "gradc check --help"])]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GRADC_")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for usage, expected in WITHOUT_TORCH.items():
        status, said = found[usage]
        said = said.replace(str(folder.resolve()), "HERE")
        assert status == 2 and len(said.splitlines()) <= 2, usage
        assert said.startswith(expected) if expected.endswith(" ") else said == f"{expected}\n"
    assert all(found[usage][0] == 0 for usage in ("gradc --help", "gradc check --help"))


@pytest.mark.parametrize("usage", WITH_TORCH)
def test_what_only_running_it_shows(usage, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(shlex.split(usage)[1:]) == 2
    said = capsys.readouterr().err.removeprefix("nothing trained\n")
    assert said.startswith(WITH_TORCH[usage]) and len(said.splitlines()) <= 2


def test_ctrl_c_takes_a_line(folder, capsys, monkeypatch):
    monkeypatch.setattr("gradc.cli.target.Target.load", interrupted)
    assert main(["explain", f"{folder / 'train.py'}:right"]) == 130
    assert capsys.readouterr().err == "\ngradc explain: stopped by Ctrl-C.\n"


def interrupted(target):
    raise KeyboardInterrupt


def test_the_command_line_knows_the_backends_that_there_are():
    assert {*BACKENDS} <= {*list_backends()}
