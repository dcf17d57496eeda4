"""gradc.explain: what it says of graphs, segments, saved bytes, graph breaks, fallbacks and recaptures."""

import json
import re
import time
import weakref

import pytest
import torch
from torch import nn

import gradc
from gradc import config
from gradc.reporting.explain import _recaptured
from gradc.torch_private.dynamo_patches.uncompiled import _names_our_setting


def explained(function, *args):
    return gradc.explain(function, backend="eager")(*args)


def two_heads(x, w):
    features = (x @ w).tanh()
    return features.sin(), features.cos()


def test_graphs_and_segments():
    found = explained(two_heads, torch.ones(4, 3), torch.ones(3, 2, requires_grad=True))
    (graph,) = found.graphs
    assert graph.num_calls == 4  # mm, tanh, sin, cos
    # sin and cos are each reached by one output; tanh and mm by both
    assert [cut.num_nodes for cut in graph.segments] == [2, 1, 1]
    assert graph.saved_bytes == 4 * 2 * 4  # tanh's result, float32; sin and cos save the same tensor
    assert "features = (x @ w).tanh()" in graph.segments[0].where
    assert (found.graph_breaks, found.fallbacks, found.recaptures) == ((), (), ())


def test_the_report():
    text = str(explained(two_heads, torch.ones(4, 3), torch.ones(3, 2, requires_grad=True)))
    text = re.sub(r"region \d+", "region N", text).replace(__file__, "heads.py")
    text = re.sub(r":\d+ in", ":1 in", text)
    text = re.sub(r"test_explain.py:\d+", "heads.py:1", text)
    assert re.sub("-+", "-", re.sub(" +", " ", text)) == (  # columns are as wide as the region's number makes them
        """\
1 graph, 0 graph breaks, 0 fallbacks, 0 recaptures

graph calls autograd nodes by segment saved
- - - -
region N 4 2 + 1 + 1 32 B
region N begins at File: heads.py:1 in two_heads, code: features = (x @ w).tanh()

kept for backward size tensor made by at needed by
- - - - - -
region N 32 B float32[4, 2] aten.tanh.default heads.py:1 TanhBackward0, SinBackward0, CosBackward0"""
    )


def test_what_is_kept_for_backward_and_who_needs_it():
    def pooled(x, w):
        for _ in range(12):
            x = x.exp()
        return torch.nn.functional.max_pool1d(x * w, 2)

    found = explained(pooled, torch.ones(3, 64, requires_grad=True), torch.ones(64, requires_grad=True))
    (graph,) = found.graphs
    assert graph.saved_bytes == sum(each.num_bytes for each in graph.kept) == graph.segments[0].saved_bytes
    sizes = [each.num_bytes for each in graph.kept]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) > 8
    assert {"ExpBackward0", "MulBackward0"} <= {name for each in graph.kept for name in each.needed_by}
    rows = str(found).partition("kept for backward")[2].splitlines()
    assert (
        sum("ExpBackward0" in row for row in rows) <= 8
        and rows[10] == f"and {len(sizes) - 8} more: {sum(sizes[8:]) / 1000:.1f} kB"
    )
    assert found.to_dict()["graphs"][0]["kept"][0].keys() == {"num_bytes", "tensor", "made_by", "where", "needed_by"}


def breaks(x):
    y = x.sin()
    print(end="")
    return y.cos()


def test_graph_breaks_say_where_and_why():
    found = explained(breaks, torch.ones(3, requires_grad=True))
    assert len(found.graphs) == 2
    (graph_break,) = found.graph_breaks
    assert graph_break.reason.startswith("Failed to trace builtin operator: Dynamo does not know how to trace")
    assert graph_break.where.startswith(f"File: {__file__}:") and graph_break.where.endswith('in breaks, code: print(end="")')
    assert "Consider using an equivalent alternative" in graph_break.advice and graph_break.advice in str(found)


def test_a_function_that_is_not_compiled_is_listed_with_what_ran_eagerly():
    found = explained(lambda x: weakref.ref(x * 2)() is None, torch.ones(3))
    (fallback,) = found.fallbacks
    assert fallback.kind == "gradc: weakref.ref" and found.graphs == found.graph_breaks == ()


def test_a_first_capture_is_no_recapture():
    def step(x):
        for power in (2, 3):
            (x**power).sin().sum().backward()

    assert explained(step, torch.ones(3, requires_grad=True)).recaptures == ()


def branches(x):
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).sum()


def test_fallbacks_say_where_and_why():
    found = explained(branches, torch.ones(3, requires_grad=True))
    assert found.graphs == ()
    (fallback,) = set(found.fallbacks)
    assert fallback.kind in ("tensor of unknown origin", "operator without a schema")
    assert f"{__file__}:" in fallback.where and "torch.cond" in fallback.where
    assert f"\nran eagerly 2 times: {fallback.kind}" in str(found)
    assert fallback.advice.startswith(("Use `torch.where`", "Nothing; or use `torch.where`"))
    assert f"\n  {fallback.advice}" in str(found)


def test_recaptures_say_what_changed():
    shapes = iter([3, 4])
    found = explained(lambda x: x[: next(shapes)].sin(), torch.ones(5, requires_grad=True))
    assert len(found.recaptures) >= 1

    def fickle(x):
        return x.sin() if torch.is_autocast_enabled("cpu") else x.cos()

    states = iter([False, True])

    @torch.compiler.disable
    def turn():
        torch.set_autocast_enabled("cpu", next(states))

    def step(x):
        turn()
        return fickle(x)

    found = explained(step, torch.ones(3, requires_grad=True))
    assert any("autocast" in recapture.lower() for recapture in found.recaptures), found.recaptures


def test_a_step_that_ran_backward_itself():
    model = nn.Linear(3, 1)

    def step(x):
        loss = model(x).square().sum()
        loss.backward()
        return loss

    assert len(explained(step, torch.ones(2, 3)).graphs) == 1


def test_a_compiled_function_is_explained_as_it_was_compiled():
    compiled = gradc.compile(two_heads, backend="eager", fullgraph=True)
    assert len(explained(compiled, torch.ones(4, 3), torch.ones(3, 2, requires_grad=True)).graphs) == 1


def test_symbolic_sizes_are_counted_as_they_were():
    compiled = gradc.compile(two_heads, backend="eager", dynamic=True)
    (graph,) = explained(compiled, torch.ones(4, 3), torch.ones(3, 2, requires_grad=True)).graphs
    assert graph.saved_bytes == 32


def test_arguments_are_left_alone():
    x, w = torch.ones(4, 3), torch.ones(3, 2, requires_grad=True)
    explained(two_heads, x, w)
    assert w.grad is None


def test_unknown_backend():
    with pytest.raises(gradc.ConfigError, match="backend='magic' is not known"):
        gradc.explain(two_heads, backend="magic")


def test_settings_stay():
    with config.patch(backward_pass_autocast="off"):
        explained(two_heads, torch.ones(4, 3), torch.ones(3, 2, requires_grad=True))
        assert config.backward_pass_autocast == "off"


def test_to_dict_is_json():
    found = explained(branches, torch.ones(3, requires_grad=True)).to_dict()
    assert json.loads(json.dumps(found)) == found
    (fallback,) = found["fallbacks"]
    assert fallback["times"] == 2 and "torch.cond" in fallback["where"]
    graph = explained(two_heads, torch.ones(4, 3), torch.ones(3, 2, requires_grad=True)).to_dict()["graphs"][0]
    assert graph["num_calls"] == 4 and [cut["num_nodes"] for cut in graph["segments"]] == [2, 1, 1]


def breaks_twice(x):
    for _ in range(2):
        x = breaks(x)
    return x


def test_each_graph_break_stands_there_once():
    found = explained(breaks_twice, torch.ones(3, requires_grad=True))
    assert len(found.graph_breaks) == 1 and str(found).count("\ngraph break: ") == 1


def test_how_long_compiling_took():
    found = explained(two_heads, torch.ones(4, 3), torch.ones(3, 2, requires_grad=True))
    phases = found.compile_time
    assert phases.dynamo > 0 < phases.forward and phases.rest >= 0
    assert str(phases) not in str(found)  # which is the same each time
    assert found.to_dict()["compile_time"]["dynamo"] == phases.dynamo


def sleeps(x):
    y = breaks(x)
    time.sleep(0.01)
    return y.exp()


def test_where_times_are_measured_graph_breaks_say_what_passes_there():
    found = gradc.explain(sleeps, is_timed=True)(torch.ones(3, requires_grad=True))
    slow, *others = found.graph_breaks
    assert slow.where.endswith("code: time.sleep(0.01)") and slow.share > 0.5
    assert [other.share < 0.5 for other in others] == [True]
    text = str(found)
    assert f"\n  {slow.share:.0%} of a step passes here\n" in text and f"\n{found.compile_time}\nof a step, profiled: " in text
    assert json.loads(json.dumps(found.to_dict()["graph_breaks"]))[0]["share"] == slow.share


def test_a_module_is_left_alone():
    module = nn.BatchNorm1d(3)
    explained(module, torch.randn(4, 3))
    assert module.weight.grad is None and module.num_batches_tracked == 0


def test_another_call_of_a_module_is_no_recapture():
    assert explained(nn.Linear(3, 2), torch.ones(4, 3)).recaptures == ()


class Metrics:
    """As Dynamo says it of a backward pass, and of a function."""

    def __init__(self, name, reason):
        self.co_name, self.co_filename, self.co_firstlineno, self.recompile_reason = name, "train.py", 3, reason


def test_what_is_captured_again_has_a_place_and_a_cure():
    assert _recaptured(Metrics(None, "0/0: n == 3  # y = x[:n]  # train.py:4 in step")) == (
        "a backward pass: n == 3 no longer holds, read at train.py:4\n"
        "  Keep sizes the same, or compile with dynamic=True: what is captured then serves all of them."
    )
    assert _recaptured(Metrics("step", "0/0: GLOBAL_STATE changed: autocast")).startswith("step at train.py:3: ")


def test_advice_names_no_setting_that_gradc_switched_off():
    assert _names_our_setting("Set `torch._dynamo.config.trace_numpy` to True to trace numpy functions.")
    assert not _names_our_setting("Set torch._dynamo.config.recompile_limit higher.")


@pytest.mark.parametrize("function", [lambda x: x * x.sum().item(), lambda x: x[x > 0].sum()], ids=["item", "mask"])
def test_advice_names_no_setting_under_which_all_would_run_eagerly(function):
    """Dynamo advises to let values into graphs, of which Programs know none: the whole graph ran eagerly then."""
    (found,) = gradc.explain(function)(torch.ones(3, requires_grad=True)).graph_breaks
    assert found.advice and "torch._dynamo.config" not in found.advice
