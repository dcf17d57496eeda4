"""Memory of the native executor is reused where nobody holds it and the peak stays; values die after their last use."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import gradc
from gradc import executor, native
from gradc.bits import same_bits
from gradc.executor.core.plan import SMALL, SOON, plan_spec
from tests.executor.agree import Probe, allocations, capture

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


# ---- tensors that are given out again


HELD = {
    "the gradient": lambda grad: grad,
    "a view": lambda grad: grad.view(-1),
    "detached": lambda grad: grad.detach(),
    "its memory": lambda grad: torch.empty(0).set_(grad.untyped_storage()),
    "of numpy": lambda grad: torch.from_numpy(grad.numpy()),
    "a leaf that has it, too": lambda grad: _leaf_with(grad).grad,
    "saved for backward": lambda grad: (torch.ones_like(grad, requires_grad=True) * grad).grad_fn._saved_other,
}


def _leaf_with(grad):
    leaf = torch.zeros_like(grad, requires_grad=True)
    leaf.grad = grad
    return leaf


def _training(compile):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(5, 4)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()

    return compile(step), [*model.parameters()]


@pytest.mark.parametrize("name", HELD)
def test_a_gradient_that_somebody_holds_is_not_given_out_again(name):
    step, params = _training(gradc.compile)
    for _ in range(4):
        step()
    held = [HELD[name](param.grad) for param in params]
    copies = [each.clone() for each in held]
    for _ in range(4):
        step()
    assert all(map(same_bits, held, copies))


def test_a_gradient_that_is_given_out_again_is_as_a_new_one():
    step, params = _training(gradc.compile)
    other, others = _training(lambda step: step)
    for number in range(6):
        step(), other()
        for param, own in zip(params, others, strict=True):
            assert same_bits(param.grad, own.grad)
            assert (param.grad._version, param.grad.requires_grad, vars(param.grad)) == (0, False, {})
            if number % 2:
                param.grad.mark = own.grad.mark = "seen"
                param.grad.mul_(2), own.grad.mul_(2)
                param.grad.requires_grad_(), own.grad.requires_grad_()


def test_memory_of_a_thread_that_has_ended():
    """It has kept tensors, and another thread holds the last gradients."""
    step, params = _training(gradc.compile)
    eager, others = _training(lambda step: step)

    def run():
        for _ in range(4):
            step()

    for _ in range(3):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    for _ in range(12):
        eager()
    assert all(map(same_bits, params, others))
    assert all(same_bits(param.grad, own.grad) for param, own in zip(params, others, strict=True))


def test_inference_tensors_are_new_ones():
    compiled = gradc.compile(lambda x: x.sin().cos().neg())
    x = torch.randn(7)
    for _ in range(3):
        assert not compiled(x).is_inference()
        with torch.inference_mode():
            assert compiled(x).is_inference()


def test_torchs_profiler_sees_each_tensor():
    step, params = _training(gradc.compile)
    for _ in range(4):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        for _ in range(3):
            step()
    sizes = allocations(profile)
    num_bytes = sum(4 * param.numel() for param in params)
    assert sum(size for size in sizes if size > 0) >= 3 * num_bytes
    assert sum(size for size in sizes if size < 0) <= -3 * num_bytes


def test_small_is_what_the_executor_keeps_at_hand():
    """A result that waits for memory to be reused is in no chain: of 127 kB, nine multiplications took 31 us, in a chain 12."""
    header = Path(gradc.__file__).parent / "executor" / "cpu" / "csrc" / "memory.h"
    assert f"small_bytes = {SMALL // 1024} * 1024;" in header.read_text()
