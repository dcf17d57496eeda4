"""With TORCH_TRACE set, torch's structured trace holds gradc's programs and events; without it, nobody listens."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gradc
from gradc import journal
from gradc.backends import lookup_backend
from gradc.torch_private.traces import is_traced
from gradc.traces.structured import tracing_structured

ROOT = Path(__file__).parent.parent.parent
STEP = """
import torch, gradc

@gradc.compile
def step(x):
    y = x.sin()
    print(end="")
    return torch.cond(y.sum() > 0, torch.sin, torch.cos, (y.exp(),))

for _ in range(3):
    x = torch.ones(3, requires_grad=True)
    step(x).sum().backward()
with torch.autocast("cpu", torch.bfloat16):
    y = step(x)
y.sum().backward()
for each in gradc.programs(step)(x):
    print("====" + each.name)
    print(each, end="")
"""


def artifacts(folder):
    """(name, compile id or None, payload) of each artifact of gradc's in the trace, as tlparse reads it."""
    (path,) = folder.iterdir()
    records = re.split(r"^V\d{4} .*?\] (?={)", path.read_text(), flags=re.MULTILINE)[1:]
    for record in records:
        head, _, payload = record.partition("\n")
        about = json.loads(head)
        if about.get("artifact", {}).get("name", "").startswith("gradc_"):
            text = re.sub(r"^\t", "", payload, flags=re.MULTILINE).removesuffix("\n")
            assert hashlib.md5(text.encode()).hexdigest() == about["has_payload"]
            place = tuple(about[key] for key in ("frame_id", "frame_compile_id", "attempt")) if "frame_id" in about else None
            yield about["artifact"]["name"], place, text


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    folder, path = tmp_path_factory.mktemp("trace"), tmp_path_factory.mktemp("program") / "step.py"
    path.write_text(STEP)
    environment = {**os.environ, "TORCH_TRACE": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-W", "ignore", str(path)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return list(artifacts(folder)), done.stdout


def test_programs_stand_in_the_trace_with_their_text(traced):
    found, printed = traced
    texts = {name: text for name, _, text in found}
    parts = printed.split("====")[1:]
    assert {part.partition("\n")[0] for part in parts} <= texts.keys() and len(parts) == 2
    for part in parts:
        name, _, text = part.partition("\n")
        assert texts[name] == text


def test_a_backward_stands_where_its_forward_does(traced):
    places = {name: place for name, place, _ in traced[0]}
    assert places["gradc_forward_0"] == places["gradc_backward_0_segment_0_state_0"]
    assert places["gradc_forward_0"][:2] == (0, 0)  # and the attempt, since the graph break begins another


def test_events_stand_there_once(traced):
    names = [name for name, _, _ in traced[0]]
    assert names.count("gradc_graph_break") == names.count("gradc_fallback") == 1
    texts = {name: text for name, _, text in traced[0]}
    assert re.search(r'\n  at File: .*code: print\(end=""\)$', texts["gradc_graph_break"])
    assert "torch.cond" in texts["gradc_fallback"]


def test_another_state_is_a_recapture():
    told = []
    with pytest.MonkeyPatch.context() as patch, tracing_structured():
        patch.setattr("gradc.traces.structured.trace_artifact", lambda name, text, of=None: told.append((name, text())))
        y = gradc.compile(torch.exp)(torch.ones(3, requires_grad=True))
        y.backward(torch.ones(3), retain_graph=True)
        with torch.autocast("cpu", torch.bfloat16):
            y.backward(torch.ones(3))
    names = [re.sub(r"\d+", "N", name, count=1) for name, _ in told]
    states = [f"gradc_backward_N_segment_0_state_{state}" for state in (0, 1)]
    assert names == ["gradc_forward_N", states[0], "gradc_recapture", states[1]]
    assert "autocast" in told[2][1]


def test_without_torch_trace_nobody_listens():
    assert not is_traced() and not journal.is_heard("graphs") and lookup_backend("eager") is lookup_backend("eager")


def test_backward_passes_that_compiled_autograd_captures():
    told = []
    with pytest.MonkeyPatch.context() as patch, tracing_structured():
        patch.setattr("gradc.traces.structured.trace_artifact", lambda name, text, of=None: told.append((name, text())))
        gradc.reset()
        for size in (2, 3):
            with gradc.compiled_autograd.enable():
                torch.ones(size, requires_grad=True).sin().sum().backward()
    assert [name for name, _ in told][:2] == ["gradc_compiled_autograd_0", "gradc_recapture"]
    assert "aten.cos" in told[0][1] and "went from 2 to 3" in told[1][1]
