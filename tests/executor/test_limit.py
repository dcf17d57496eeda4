"""Limit: what a plan's kernels take alone. Here, that it calls what the plan calls, and leaves the plan as it is."""

import pytest
import torch

import gradc
from gradc import executor, native
from gradc.bits import same_bits
from tests.executor.agree import capture

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))


def chain(x, w):
    return ((x @ w).tanh().t() * 2).cumsum(0).sum()


def captured():
    """The plans of a forward and a backward, each with its inputs."""
    x, w = torch.randn(8, 16), torch.randn(16, 4, requires_grad=True)
    return [(executor.lower(each.program), list(each.inputs)) for each in gradc.programs(chain, with_inputs=True)(x, w)]


def test_calls_with_and_without_tensors():
    (forward, inputs), _ = captured()
    limit = native.extension.Limit(forward, list(inputs))
    assert limit.others == ["aten::cumsum"]  # a view is no call
    assert limit.num_direct == forward.num_direct == 4


def test_times_and_the_plan_as_it_was():
    for plan, inputs in captured():
        before = plan(list(inputs))
        kernels, replay = native.extension.Limit(plan, list(inputs)).time(3)
        assert 0 < kernels < 60 and 0 < replay < 60  # seconds, of any machine
        assert same_bits(plan(list(inputs)), before)


def test_inputs_that_lie_otherwise():
    (forward, (x, w)), _ = captured()
    with pytest.raises(RuntimeError, match="laid out as captured"):
        native.extension.Limit(forward, [x.t().contiguous().t(), w])


def test_a_call_on_many_tensors():
    function = lambda x: torch.cat([x + number for number in range(8)])
    x = torch.randn(3)
    plan = executor.lower(capture(function, [x]))
    limit = native.extension.Limit(plan, [x])
    assert limit.num_direct == 9
    limit.time(2)
    assert same_bits(plan([x]), [function(x)])


def test_each_call_by_itself():
    (forward, inputs), _ = captured()
    before = forward(list(inputs))
    limit = native.extension.Limit(forward, list(inputs))
    found = [(what, is_direct) for what, is_direct, seconds in limit.each(3) if seconds > 0]
    assert found[:2] == [("aten::mm [8, 16] [16, 4] -> [8, 4]", True), ("aten::tanh [8, 4] -> [8, 4]", True)]
    assert [what for what, is_direct in found if not is_direct] == ["aten::cumsum [4, 8] by [1, 4] -> [4, 8]"]
    assert same_bits(forward(list(inputs)), before)
