"""Memory of the native executor is reused where nobody holds it and the peak stays; values die after their last use."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from gradc import executor, native
from gradc.bits import same_bits
from gradc.executor.plan import SMALL, SOON, plan_spec
from tests.executor.agree import Probe, capture

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))
UNARY = frozenset({"aten::exp", "aten::sin", "aten::cos", "aten::neg", "aten::tanh"})


def test_large_memory_is_reused():
    program = capture(lambda x: x.exp().sin().cos().neg().tanh().clone(), [torch.randn(2 * SMALL)])
    steps = plan_spec(program, UNARY).steps
    assert [step.reuse for step in steps] == [None, None, 1, 2, 3, None]
    assert sorted(slot for step in steps for slot in step.deaths + step.kept) == [0, 1, 2, 3, 4, 5]
    assert [slot for step in steps for slot in step.kept] == [1, 2, 3]


def test_memory_is_not_kept_where_that_would_raise_the_peak():
    def function(x):
        first = x.exp().sum()  # exp's memory is free now ...
        second = torch.cat([x] * 8).sum()  # ... and this is the peak ...
        return first, second, x.sin().sum()  # ... so sin gets memory of its own

    program = capture(function, [torch.randn(SMALL // 2)])
    assert [step.reuse for step in plan_spec(program, UNARY).steps] == [None] * 6


def test_memory_that_somebody_holds_is_not_reused(python_op):
    held = []
    python_op["call"] = lambda x: held.append(x) or x.clone()
    program = capture(lambda x: torch.ops.gradc_test.call(x.exp()).sin().cos().neg(), [torch.randn(4)])
    held.clear()
    x = torch.randn(4)
    (out,) = executor.lower(program)([x])
    assert same_bits(held[0], x.exp()) and same_bits(out, x.exp().sin().cos().neg())


def test_large_memory_does_not_idle():
    def late(x):
        big = x.exp()
        total = big.sum()
        for _ in range(2 * SOON):
            total = total.neg()
        return [total, x.exp()]

    reused = {
        size: [step.reuse for step in plan_spec(capture(late, [torch.randn(size)]), frozenset({"aten::exp"})).steps]
        for size in (16, SMALL)
    }
    assert reused[16][-1] is None and reused[SMALL][-1] is None


# ---- lifetimes


def test_a_value_dies_after_its_last_use():
    program = capture(lambda x, y: (x.exp() + y).neg().cos(), [torch.randn(3), torch.randn(3)])
    arguments = [torch.randn(3), torch.randn(3)]
    x, y = map(weakref.ref, arguments)
    alive = {}
    with Probe(lambda op: alive.update({str(op): (x() is not None, y() is not None)})):
        executor.lower(program)(arguments)
    assert arguments == []
    assert alive == {
        "aten.exp.default": (True, True), "aten.add.Tensor": (False, True),
        "aten.neg.default": (False, False), "aten.cos.default": (False, False),
    }  # fmt: skip


def test_nothing_is_held_after_a_run_or_an_error():
    plan = executor.lower(capture(lambda x, y: [(x @ y).exp(), x @ y], [torch.randn(3, 3), torch.randn(3, 3)]))
    for shape in ((3, 3), (4, 3)):
        arguments = [torch.randn(3, 3), torch.randn(*shape)]
        held = [weakref.ref(argument.untyped_storage()) for argument in arguments]
        refs = [weakref.ref(argument) for argument in arguments]
        try:
            outputs = plan(arguments)
        except RuntimeError:
            outputs = []
        del arguments
        gc.collect()
        assert [ref() for ref in refs] == [None, None]
        assert all(output._use_count() == 1 for output in outputs)
        del outputs, held


def test_outputs_do_not_share_memory_between_runs():
    plan = executor.lower(capture(lambda x: [x.exp(), x.exp().neg()], [torch.randn(3)]))
    x = torch.randn(3)
    first, second = plan([x]), plan([x * 2])
    assert same_bits(first[0], x.exp()) and same_bits(second[0], (x * 2).exp())
    assert {tensor.data_ptr() for tensor in first}.isdisjoint(tensor.data_ptr() for tensor in second)
