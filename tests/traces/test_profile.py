"""gradc.tracing: what a profile shows of gradc, by name."""

import gzip
import json
import re

import pytest
import torch

import gradc


def breaks(x):
    y = x.sin()
    print(end="")
    return y.exp()


def step():
    torch.compiler.reset()
    gradc.compile(breaks)(torch.ones(3, requires_grad=True)).sum().backward()


def events(path):
    read = gzip.open if path.suffix == ".gz" else open
    with read(path, "rt") as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def inside(inner, outer):
    return outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_the_trace_names_what_gradc_does(tmp_path, name):
    with gradc.tracing(tmp_path / name):
        step()
    spans = {re.sub(r"\d+", "N", event["name"]): event for event in events(tmp_path / name)}
    assert "gradc: a backend lowers forward, N calls" in spans
    assert "gradc: backward of segment N of region N was captured" in spans
    assert "gradc: region N was captured, for Torch-Compiled Region: N/N" in spans
    (broken,) = (text for text in spans if text.startswith("gradc: graph break: Failed to trace builtin operator"))
    assert "code: print(end='')" in broken  # with other quotation marks, which torch would not escape
    # what torch names by itself
    assert inside(spans["gradc: a backend lowers backward_N, N calls"], spans["gradc::Segment"])
    assert inside(spans["aten::exp"], spans["Torch-Compiled Region: N/N"])


def test_each_pass_of_a_graph_break_is_marked(tmp_path):
    compiled = gradc.compile(breaks)
    compiled(torch.ones(3))
    with gradc.tracing(tmp_path / "step.json"):
        for _ in range(3):
            compiled(torch.ones(3))
    assert sum(event["name"].startswith("gradc: graph break: ") for event in events(tmp_path / "step.json")) == 3


def test_a_profiler_of_ones_own(tmp_path):
    with torch.profiler.profile() as profiler, gradc.tracing():
        step()
    assert any(event.name.startswith("gradc: region") for event in profiler.events())
    with torch.profiler.profile() as profiler:
        step()
    assert not any(event.name.startswith("gradc: region") for event in profiler.events())


def test_two_profilers_at_once_are_refused(tmp_path):
    with torch.profiler.profile() as profiler:
        with pytest.raises(gradc.ConfigError, match="a profiler is running already"), gradc.tracing(tmp_path / "step.json"):
            raise AssertionError("not reached")
        step()
    assert any(event.name == "aten::exp" for event in profiler.events())


def test_an_error_inside_comes_through_and_the_trace_is_not_written(tmp_path):
    with pytest.raises(KeyError), gradc.tracing(tmp_path / "step.json"):
        raise KeyError("mine")
    assert not (tmp_path / "step.json").exists()


def test_regions_and_segments_are_named_in_any_profile():
    step()
    with torch.profiler.profile() as profiler:
        step()
    names = {re.sub(r"\d+", "N", event.name) for event in profiler.events()}
    assert {"gradc: forward of region N", "gradc: backward of segment N of region N"} <= names
