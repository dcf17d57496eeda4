"""gradc.report: what it finds in a step, beside what is known of it."""

import itertools
import json
import math

import pytest
import torch
from torch import nn

import gradc
from gradc.cli import main
from gradc.reporting.model import Phase, Role

WIDTH = 32


@pytest.fixture(autouse=True, scope="module")
def idle():
    """The machine may be busy with other tests, which reports would say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradc.environment._MOST_LOAD", float("inf"))
        yield


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).sum()


def step_of(model, x):
    """Forward inside of autocast, backward outside."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x)
    loss.backward()
    return loss


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("report") / "report.html"
    report = gradc.report(path, step_of, Mlp(), torch.randn(16, 8))
    assert path.read_text().startswith("<!doctype html>")
    return report


def ops(report, phase):
    return [op for op in report.ops if report.graphs[op.graph].phase is phase and op.num_calls]


def test_each_graph_has_its_program_and_each_call_its_place(found):
    assert all(graph.program.startswith(f"def {graph.phase.value}") for graph in found.graphs)
    assert found.memory.places == tuple(range(len(found.memory.ops)))
    eager = found.eager_memory
    assert len(eager.places) == len(eager.ops) and list(eager.places) == sorted(eager.places)


def test_graphs_and_ops(found):
    run = [graph for graph in found.graphs if graph.num_runs]
    assert [(graph.phase, graph.segment) for graph in run] == [(Phase.FORWARD, None), (Phase.BACKWARD, 0)]
    assert run[1].name == f"backward of segment 0 of {run[0].region}" and all(graph.seconds > 0 for graph in run)
    assert all(op.seconds > 0 for phase in (Phase.FORWARD, Phase.BACKWARD) for op in ops(found, phase))


def test_each_op_knows_its_module_and_its_line(found):
    products = [op for op in ops(found, Phase.FORWARD) if op.name == "aten.addmm.default"]
    assert [op.module for op in products] == ["args[0].first", "args[0].second"]
    assert all(op.line.path == __file__ and "self.second(torch.tanh" in op.line.code for op in products)
    (tanh,) = (op for op in ops(found, Phase.FORWARD) if op.name == "aten.tanh.default")
    assert tanh.module == "args[0]"


def test_dtypes_show_autocast_in_forward_and_backward(found):
    made = {op.name: op.made[0] for phase in (Phase.FORWARD, Phase.BACKWARD) for op in ops(found, phase)}
    assert made["aten.addmm.default"].dtype == "bfloat16" and made["aten.mm.default"].dtype == "bfloat16"
    assert (made["aten.tanh.default"].dtype, made["aten.tanh.default"].shape) == ("bfloat16", (16, WIDTH))
    assert made["aten.tanh.default"].num_bytes == 16 * WIDTH * 2
    casts = [op for op in ops(found, Phase.FORWARD) if op.name == "aten._to_copy.default"]
    assert casts and {op.autocast for op in casts} == {"a cast that autocast makes"}


def test_forward_and_backward_are_linked(found):
    (tanh,) = (index for index, op in enumerate(found.ops) if op.name == "aten.tanh.default" and op.num_calls)
    (partner,) = found.ops[tanh].partners
    assert found.ops[partner].name == "aten.tanh_backward.default" and found.ops[partner].partners == (tanh,)
    second = next(op for op in ops(found, Phase.FORWARD) if op.name == "aten.addmm.default" and op.module.endswith("second"))
    names = [found.ops[index].name for index in second.partners]
    assert names.count("aten.mm.default") == 2 and {found.ops[index].module for index in second.partners} == {"args[0].second"}


def test_saved_tensors_say_who_needs_them(found):
    (backward,) = (graph for graph in found.graphs if graph.num_runs and graph.phase is Phase.BACKWARD)
    assert {name for saved in backward.saved for name in saved.needed_by} == {"TanhBackward0", "AddmmBackward0"}
    assert (16, WIDTH) in {saved.value.shape for saved in backward.saved}


def test_memory_is_what_the_tensors_take(found):
    curve = found.memory
    parameters = 4 * (8 * WIDTH + WIDTH + WIDTH * 4 + 4)
    assert set(curve.num_bytes[Role.PARAMETER]) == {parameters}
    assert curve.num_bytes[Role.GRADIENT][-1] == parameters  # .grad of the step before is there, too, or this step's
    assert curve.peak_bytes == max(curve.totals()) == sum(each.num_bytes for each in curve.alive)
    assert {"args[0].first.weight", "args[1]"} <= {each.name for each in curve.alive}
    assert len(curve.ops) == len(curve.seconds) == len(found.memory.phases)
    assert found.eager_memory.peak_bytes > parameters


def test_memory_of_saved_tensors_goes_during_backward_as_it_does_natively(tmp_path):
    x = torch.randn(64, 64, requires_grad=True)
    report = gradc.report(tmp_path / "report.html", lambda x: x.sin().cos().tanh().exp().sum(), x, is_checked=False)
    kept = report.memory.num_bytes[Role.ACTIVATION]
    assert max(kept) >= 3 * 64 * 64 * 4 and kept[-1] <= 64 * 64 * 4
    assert report.memory.peak_bytes <= report.eager_memory.peak_bytes


def test_times(found):
    times = found.times
    assert min(times.eager, times.compiled, times.first) > 0 and times.first > times.compiled
    rows = {(row.name, row.phase): row for row in times.by_op}
    product = rows["aten.addmm.default", Phase.FORWARD]
    assert (product.num_eager, product.num_compiled) == (2, 2)
    assert math.isclose(sum(op.seconds for op in found.ops if op.num_calls), sum(row.compiled_seconds for row in times.by_op))


def test_eagers_calls_are_found_again(found):
    assert all(op.eager_seconds for phase in (Phase.FORWARD, Phase.BACKWARD) for op in ops(found, phase))


def test_parity_and_captures(found):
    assert found.parity.ok and found.parity.is_conclusive
    assert found.explanation.fallbacks == () == found.notes
    assert any("AccumulateGrad" in text for text in found.explanation.recaptures)  # in the second step .grad is there already


def test_to_dict_is_json(found):
    plain = found.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert len(plain["ops"]) == len(found.ops) and plain["parity"]["ok"] is True


def test_arguments_are_left_alone(tmp_path):
    w = torch.ones(3, requires_grad=True)
    gradc.report(tmp_path / "report.html", lambda w: (w * 2).sin().sum(), w, backend="eager", is_checked=False)
    assert w.grad is None


def test_a_second_capture_has_its_step_and_its_reason(tmp_path):
    """Of steps that differ, the same one is measured in eager and compiled: the second, with forty rows and a cosine."""
    lengths = itertools.cycle([30, 40])
    w = torch.ones(3, requires_grad=True)

    def step():
        length = next(lengths)
        x = torch.ones(length, 3) * w
        return (x.cos() if length == 40 else x.sin()).sum()

    report = gradc.report(tmp_path / "report.html", step, backend="eager", is_checked=False)
    assert {graph.made_in_step for graph in report.graphs} == {1, 2}
    assert {graph.made_in_step for graph in report.graphs if graph.num_runs} == {2}
    assert any("30" in text for text in report.explanation.recaptures) and report.parity is None
    (break_,) = report.explanation.graph_breaks
    assert 0 < break_.share < 1 and 0 < report.explanation.compile_time.whole < report.times.first
    numbers = {row.name: (row.num_eager, row.num_compiled) for row in report.times.by_op}
    assert numbers["aten.cos.default"] == (1, 1) and numbers["aten.sin.default"] == (1, 1)  # the sine is backward's
    shapes = {value.shape for op in report.ops if op.num_calls for value in op.made}
    assert (40, 3) in shapes and (30, 3) not in shapes


def test_where_nothing_is_compiled(tmp_path):
    def function(x):
        with torch.no_grad():
            view = x[0]
        return (view * x).sum()

    x = torch.ones(3, 3, requires_grad=True)
    report = gradc.report(tmp_path / "report.html", function, x, is_checked=False)
    assert report.explanation.fallbacks and report.graphs == report.ops == ()
    assert report.memory.seconds == () and report.memory.peak_bytes == 0 and report.eager_memory.seconds


def test_a_step_that_cannot_be_looked_at(tmp_path):
    def step(x):
        if torch.utils._python_dispatch._get_current_dispatch_mode_stack():
            raise ValueError("not under a mode")
        return x.sin().sum()

    report = gradc.report(tmp_path / "report.html", torch.compiler.disable(step), torch.ones(3), is_checked=False)
    (note,) = report.notes
    assert note.startswith(
        "Recorded call by call, the step raises in eager: ValueError: not under a mode. So nothing is known of"
    )


def test_mistakes(tmp_path):
    with pytest.raises(gradc.ConfigError, match=r"there is no folder .*nowhere for report.html"):
        gradc.report(tmp_path / "nowhere" / "report.html", torch.sin, torch.ones(1))
    with pytest.raises(gradc.ConfigError, match="steps=0 is none"):
        gradc.report(tmp_path / "report.html", torch.sin, torch.ones(1), steps=0)


def test_the_command(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import torch\nw = torch.ones(3, requires_grad=True)\ndef step():\n    return (w * 2).sin().sum()\n"
    )
    page = tmp_path / "page.html"
    assert main(["report", f"{tmp_path / 'mine.py'}:step", "--output", str(page), "--no-check"]) == 0
    assert "2 graphs, " in capsys.readouterr().out and "aten.sin.default" in page.read_text()


def test_backward_passes_that_compiled_autograd_captures(tmp_path):
    weight = torch.ones(3, 2, requires_grad=True)

    def step(x):
        with gradc.compiled_autograd.enable():
            (x @ weight).tanh().sum().backward()

    found = gradc.report(tmp_path / "report.html", step, torch.ones(2, 3), is_checked=False)
    first, second = found.graphs
    assert [first.name, second.name] == [f"piece {number} of captured backward passes" for number in (0, 1)]
    assert (first.phase, first.num_runs, first.reason) == (Phase.BACKWARD, 0, "")
    assert second.num_runs == 1 and second.seconds and "its leaf has a .grad now" in second.reason
    assert "aten.tanh_backward.default" in {op.name for op in found.ops if found.graphs[op.graph] is second}
