"""What docs/report.md says of the step of examples/gpt_step.py is what its report finds."""

import collections
import sys
from pathlib import Path

import pytest

from gradc.cli.target import Target
from gradc.reporting.model import Phase, Role
from gradc.reporting.report import report

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    before = [*sys.path]
    step = Target("report", ROOT / "examples" / "gpt_step.py", "step").load()
    sys.path[:] = before
    return report(tmp_path_factory.mktemp("gpt") / "gpt.html", step, is_checked=False)


def dtypes(found, phase):
    """Of what the ops of the measured step return, by the op's name."""
    made = collections.defaultdict(set)
    for op in found.ops:
        if op.num_calls and found.graphs[op.graph].phase is phase and op.made:
            made[op.name].add(op.made[0].dtype)
    return made


def test_which_ops_of_backward_ran_in_bfloat16(found):
    forward, backward = dtypes(found, Phase.FORWARD), dtypes(found, Phase.BACKWARD)
    assert forward["aten.addmm.default"] == backward["aten.mm.default"] == {"bfloat16"}
    assert backward["aten.gelu_backward.default"] == {"bfloat16"}
    in_float32 = ("aten.native_layer_norm_backward.default", "aten._log_softmax_backward_data.default")
    assert [backward[name] for name in in_float32] == [{"float32"}] * 2
    assert {op.autocast for op in found.ops if found.graphs[op.graph].phase is Phase.BACKWARD} == {""}


def test_what_is_alive_at_the_peak(found):
    largest = found.memory.alive[:6]
    assert {each.role for each in largest} == {Role.ACTIVATION}
    assert {found.ops[each.op].module.rpartition(".mlp.")[1] for each in largest} == {".mlp."}
    assert found.memory.num_bytes[Role.ACTIVATION][found.memory.peak] > found.memory.peak_bytes / 2
    assert found.memory.peak_bytes == pytest.approx(found.eager_memory.peak_bytes, rel=0.01)


def test_why_it_was_captured_again(found):
    reason = "tensor 'starts' size mismatch at index 0. expected 10, actual 16"
    assert any(reason in text for text in found.explanation.recaptures)
    assert reason in (ROOT / "docs" / "report.md").read_text()


def test_which_op_takes_most_time(found):
    first = found.times.by_op[0]
    times = [max(row.eager_seconds, row.compiled_seconds) for row in found.times.by_op]
    assert times == sorted(times, reverse=True) and first.num_eager > 0


def test_nearly_every_op_has_its_module_and_its_gradient(found):
    run = [op for op in found.ops if op.num_calls and found.graphs[op.graph].phase is Phase.BACKWARD]
    assert len(run) > 200 and sum(bool(op.module) and bool(op.partners) for op in run) / len(run) > 0.95
