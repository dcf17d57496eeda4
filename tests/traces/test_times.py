"""How long compiling took, and where the time of a compiled step goes."""

import time
from types import SimpleNamespace

import pytest
import torch

import gradc
from gradc.torch_private.dynamo import compilations
from gradc.traces.compile_time import compile_time_of
from gradc.traces.times import step_times


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
    shares = {found.where.rpartition("code: ")[2]: times.share(found) for found in times.breaks}
    assert shares.keys() == {"time.sleep(0.02)", 'print(end="")'}
    assert shares["time.sleep(0.02)"] > 0.5 > shares['print(end="")']
    assert times.whole > 0.02 and 0 < times.backward < times.whole


def test_a_break_that_is_passed_twice_in_a_step_counts_twice():
    compiled = gradc.compile(slept)
    compiled(torch.ones(3))
    once = step_times(lambda: compiled(torch.ones(3)), 3)
    twice = step_times(lambda: (compiled(torch.ones(3)), compiled(torch.ones(3))), 3)
    (first, *_), (second, *_) = sorted(once.breaks.values(), reverse=True), sorted(twice.breaks.values(), reverse=True)
    assert second > 1.5 * first


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
