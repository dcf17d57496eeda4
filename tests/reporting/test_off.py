"""While nobody looks, a compiled step runs no line of check, explain, report, traces or the journal."""

import sys
from pathlib import Path

import torch
from torch import nn

import gradc

PACKAGE = Path(gradc.__file__).parent
TOOLS = [str(PACKAGE / name) for name in ("parity", "reporting", "traces", "shadow", "journal.py", "cli.py")]


def files_of(step):
    """The files of gradc's whose functions a call comes through."""
    files = set()
    sys.setprofile(lambda frame, event, argument: files.add(frame.f_code.co_filename))
    try:
        step()
    finally:
        sys.setprofile(None)
    return {file for file in files if file.startswith(str(PACKAGE))}


def test_a_step_of_one_layer():
    model = gradc.compile(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), options={"compare_with_eager": False})
    x = torch.randn(4, 8)

    def step():
        model(x).sum().backward()

    assert gradc.check(step, steps=2).is_conclusive and str(gradc.explain(step)())
    step()
    step()
    assert not {file for file in files_of(step) if file.startswith(tuple(TOOLS))}
    assert {file for file in files_of(lambda: gradc.check(step)) if file.startswith(tuple(TOOLS))}  # it does see them
