"""How long compiling took, and where the time of a compiled step goes."""

import time
from types import SimpleNamespace

import pytest
import torch

import gradc
from gradc.torch_private.dynamo import compilations
from gradc.traces.compile_time import compile_time_of
from gradc.traces.times import Span, shares_of, step_times


def slept(x):
    y = x.sin()
    time.sleep(0.02)
    z = y.exp()
    print(end="")
    return z.cos()


def test_what_passes_at_each_graph_break():
    compiled = gradc.compile(slept)

    def step():
        compiled(torch.ones(3, requires_grad=True)).sum().backward()

    step()
    times = step_times(step, 3)
    shares = {found.where.rpartition("code: ")[2]: share for found, share in times.breaks.items()}
    assert shares.keys() == {"time.sleep(0.02)", 'print(end="")'}
    assert shares["time.sleep(0.02)"] > 0.5 > shares['print(end="")']
    assert times.seconds > 0.02 and 0 < times.backward < 1 and sum(shares.values()) + times.backward < 1


def test_python_runs_until_something_compiled_is_called_or_the_step_ends():
    step = Span("gradc: a step", 100, 300)
    spans = [
        Span("Torch-Compiled Region: 0/0", 110, 280),
        Span("gradc: passes graph break 0", 120, 121),
        Span("aten::sin", 130, 140),  # Python's own
        Span("TorchDynamo Cache Lookup", 141, 150),
        Span("Torch-Compiled Region: 1/0", 150, 270),
        Span("gradc: passes graph break 1", 160, 160),
        Span("gradc: passes graph break 0", 170, 170),
        Span("gradc::Segment", 190, 240),
        Span("gradc: passes graph break 1", 290, 290),
    ]
    backward, breaks = shares_of(step, spans)
    assert backward == 50 / 200
    assert breaks == {"gradc: passes graph break 0": (20 + 20) / 200, "gradc: passes graph break 1": (10 + 10) / 200}


def test_without_graph_breaks_there_is_nothing_to_share():
    compiled = gradc.compile(torch.sin)
    compiled(torch.ones(3))
    times = step_times(lambda: compiled(torch.ones(3)), 2)
    assert times.breaks == {} and times.backward == 0


def test_phases_of_compiling():
    frames = [
        SimpleNamespace(entire_frame_compile_time_s=0.5, backend_compile_time_s=0.25),
        SimpleNamespace(entire_frame_compile_time_s=0.25, backend_compile_time_s=None),
    ]
    found = compile_time_of(frames, 2.0, 0.25)
    assert (found.dynamo, found.forward, found.rest, found.whole) == (0.5, 0.25, 1.0, 1.75)
    assert str(found) == "compiled in 1.8 s: Dynamo 0.5 s, forwards 0.25 s, backwards and all else 1 s"
    assert compile_time_of(frames, 0.1, 0.2).rest == 0


def test_torch_tells_both_phases():
    torch.compiler.reset()
    before = compilations()
    start = time.perf_counter()
    gradc.compile(torch.sin)(torch.ones(3))
    seconds = time.perf_counter() - start
    found = compile_time_of([done for done in compilations() if done not in before], seconds, 0.0)
    assert 0 < found.forward < seconds and 0 < found.dynamo < seconds
    assert found.whole == pytest.approx(seconds)
