"""The native executor: eager's bits, lifetimes, version counters, threads and errors."""

from __future__ import annotations

import dataclasses
import threading
import warnings

import pytest
import sympy
import torch
from torch import nn

from gradc import executor, native
from gradc.ambient import AutocastState
from gradc.bits import same_bits
from gradc.errors import UnsupportedError
from gradc.executor.core import interpret
from gradc.executor.core.plan import plan_spec
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, Slot, Sym
from tests.executor.agree import Probe, assert_same, capture, check_agree

aten = torch.ops.aten

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))


def gradients(model: nn.Module):
    """A function of (x, *parameters, *buffers) to the loss and its gradients with respect to the parameters."""
    names = [name for name, _ in model.named_parameters()]
    others = [name for name, _ in model.named_buffers()]

    def step(x, *values):
        state = dict(zip([*names, *others], values))
        loss = torch.func.functional_call(model, state, x).float().square().sum()
        return [loss, *torch.autograd.grad(loss, [state[name] for name in names])]

    return step, [*model.parameters(), *model.buffers()]


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), lambda: torch.randn(3, 8)),
    "conv and batch norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        lambda: torch.randn(2, 3, 8, 8),
    ),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU()).to(memory_format=torch.channels_last),
        lambda: torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
    ),
    "attention with dropout": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.3, batch_first=True),
        lambda: torch.randn(2, 5, 16),
    ),
    "lstm": (lambda: nn.Sequential(nn.LSTM(4, 6), First()), lambda: torch.randn(5, 2, 4)),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(10, 4), nn.LayerNorm(4)),
        lambda: torch.tensor([[1, 2, 1], [3, 0, 9]]),
    ),
    "bfloat16": (lambda: nn.Sequential(nn.Linear(8, 16), nn.SiLU()).bfloat16(), lambda: torch.randn(3, 8).bfloat16()),
}


class First(nn.Module):
    def forward(self, values):
        return values[0]


@pytest.mark.parametrize("name", MODELS)
def test_models_agree(name):
    make_model, make_input = MODELS[name]
    torch.manual_seed(0)
    step, values = gradients(make_model())
    check_agree(step, [make_input(), *values], others=["eager"] if name == "lstm" else ["eager", "interpreter"])


def test_most_calls_of_a_network_are_typed():
    step, values = gradients(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))))
    plan = executor.lower(capture(step, [torch.randn(2, 8), *values]))
    assert plan.num_typed >= 0.9 * plan.num_steps


FUNCTIONS = {
    "split and unbind": lambda x: [part.exp() for part in (*x.split([1, 3]), *x.unbind(1))],
    "cat and stack": lambda x: [torch.cat([x, x.t().contiguous().t()], 1), torch.stack([x, x])],
    "index with None": lambda x: [x[:, torch.tensor([0, 2])], x[torch.tensor([True, False, True, False])]],
    "foreach": lambda x: torch._foreach_add([x, x * 2], [x, x], alpha=2),
    "in place on a view": lambda x: [x.mul_(2), x[1].add_(1), x[:, 1:].t()],
    "out= and returned argument": lambda x: [torch.add(x, 1, out=torch.empty(4, 4)), x],
    "random": lambda x: [torch.rand_like(x), torch.dropout(x, 0.5, True), torch.normal(x, 1.0), torch.randperm(7)],
    "complex and conj": lambda x: [
        torch.view_as_real(torch.complex(x, x).conj().mul(2j)),
        torch.complex(x, x).conj() @ torch.complex(x, x),
    ],
    "numbers as tensors": lambda x: [x + 1, 2 - x, x.clone().add_(1), torch.where(x > 0, x, 0.0)],
    "expanded and overlapping": lambda x: [
        x[0].expand(3, 4) + 1,
        x.as_strided((3, 3), (1, 1)).sum(1),
        x.unfold(0, 2, 1),
    ],
    "several results": lambda x: [*torch.max(x, 1), *torch.linalg.svd(x), *torch.topk(x, 2)],
    "factories": lambda x: [torch.arange(5), torch.zeros(2, 3).fill_(2), torch.full((2,), 1.5), torch.eye(3)],
    "sparse": lambda x: [x.relu().to_sparse(), x.to_sparse().to_dense()],
    "dtype and memory format": lambda x: [
        x.double(),
        x.to(torch.bfloat16),
        x.t().clone(memory_format=torch.contiguous_format),
    ],
    "empty tensors": lambda x: [x[:0].sum(), x[:0] @ x, x.new_empty(0).relu()],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_agree(name):
    torch.manual_seed(1)
    check_agree(FUNCTIONS[name], [torch.randn(4, 4)])


def test_optional_and_returned_undefined_tensors():
    def step(x, weight, grad):
        sizes = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
        return aten.convolution_backward(grad, x, weight, None, *sizes, [False, True, False])[1]

    check_agree(step, [torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), torch.randn(1, 3, 3, 3)])


# ---- loading


def test_without_the_extension_the_interpreter_serves_and_says_so_once(monkeypatch):
    monkeypatch.setattr(native, "is_built", lambda: False)
    executor.core.native._warn_once.cache_clear()
    program = capture(lambda x: x.exp(), [torch.randn(3)])
    with pytest.warns(UserWarning, match="the C\\+\\+ extension was not built"):
        runner = executor.lower(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executor.lower(program)
    x = torch.randn(3)
    assert same_bits(runner([x])[0], x.exp()) and not executor.is_plan(runner)
    assert native.status().name == "interpreter"


# ---- exact runs: views from known strides, results in reused memory


def chain(x):
    """Temporaries of one size, views of them, and results that alias what died."""
    a = (x @ x).tanh()
    b = (a.t() @ x).sigmoid() + 1
    c = (b * b.t()).exp().view(-1)[:16].view(4, 4)
    return [c @ c.t(), (c - b).t(), a.select(0, 1), x[1:].neg(), x.as_strided((2, 2), (4, 1), 1).exp()]


@pytest.mark.parametrize("layout", ["as captured", "transposed", "strided", "another offset", "another size"])
def test_inputs_laid_out_unlike_when_captured(layout):
    make = {
        "as captured": lambda: torch.randn(4, 4),
        "transposed": lambda: torch.randn(4, 4).t(),
        "strided": lambda: torch.randn(4, 8)[:, ::2],
        "another offset": lambda: torch.randn(8, 4)[3:7],
        "another size": lambda: torch.randn(4, 4, dtype=torch.float64),
    }[layout]
    program = capture(chain, [torch.randn(4, 4)])
    plan, interpreter = executor.lower(program), interpret.lower(program)
    for _ in range(3):
        x = make()
        for got, expected, eager in zip(plan([x]), interpreter([x]), chain(x), strict=True):
            assert_same(got, expected)
            assert_same(got, eager)


# ---- version counters


def test_mutating_an_input_bumps_its_version_as_eager_does():
    def mutate(x, y):
        x.add_(1)
        x[0].mul_(2)
        x.view(-1)[1:].zero_()
        torch.exp(x, out=y)

    eager = [torch.randn(2, 2), torch.randn(2, 2)]
    replayed = [tensor.clone() for tensor in eager]
    plan = executor.lower(capture(lambda *inputs: mutate(*inputs) or [], [tensor.clone() for tensor in eager]))
    mutate(*eager)
    plan(list(replayed))
    assert [tensor._version for tensor in replayed] == [tensor._version for tensor in eager]
    assert_same(replayed[0], eager[0])


def test_a_view_that_is_returned_shares_the_version_of_its_base():
    x = torch.randn(2, 3)
    view, part, other = executor.lower(capture(lambda x: [x.t(), x.split(1)[1][0], x.exp()], [x]))([x])
    before = view._version
    x.zero_()
    assert (view._version, part._version, other._version) == (before + 1, before + 1, 0)


def test_a_saved_value_that_is_mutated_is_seen():
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    executor.lower(capture(lambda y: y.mul_(2), [torch.ones(3)]))([y.detach()])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# ---- ambient state


def test_inputs_that_require_grad_record_nothing():
    weight = nn.Parameter(torch.randn(3, 3))
    (out,) = executor.lower(capture(lambda w: w.detach().mul(2), [weight]))([weight])
    assert not out.requires_grad and torch.is_grad_enabled()


def test_a_leaf_that_requires_grad_may_be_mutated():
    weight = nn.Parameter(torch.zeros(3))
    program = capture(lambda w: w.add_(1), [torch.zeros(3)])
    executor.lower(program)([weight])
    assert weight.tolist() == [1, 1, 1] and weight.is_leaf and weight._version == 1


def test_ambient_autocast_is_not_seen_and_comes_back():
    plan = executor.lower(capture(lambda x: x @ x, [torch.randn(3, 3)]))
    with torch.autocast("cpu", torch.bfloat16):
        (out,) = plan([torch.randn(3, 3)])
        assert out.dtype is torch.float32
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16


def test_an_instruction_runs_under_the_autocast_it_was_captured_for():
    program = capture(lambda x: x @ x, [torch.randn(3, 3)])
    state = AutocastState((("cpu", torch.bfloat16),))
    program = dataclasses.replace(
        program, instructions=tuple(dataclasses.replace(i, autocast=state) for i in program.instructions)
    )
    (out,) = executor.lower(program)([torch.randn(3, 3)])
    assert out.dtype is torch.bfloat16 and not torch.is_autocast_enabled("cpu")


def test_a_dispatch_mode_sees_every_call():
    seen = []
    plan = executor.lower(capture(lambda x: (x @ x).tanh(), [torch.randn(3, 3)]))
    x = torch.randn(3, 3)
    with Probe(seen.append):
        plan([x])
    assert seen == [aten.mm.default, aten.tanh.default]


def test_a_profiler_sees_every_call():
    plan = executor.lower(capture(lambda x: (x @ x).tanh(), [torch.randn(3, 3)]))
    with torch.profiler.profile() as profile:
        plan([torch.randn(3, 3)])
    assert {"aten::mm", "aten::tanh"} <= {event.key for event in profile.key_averages()}


def test_a_subclass_is_dispatched_to():
    from torch.testing._internal.two_tensor import TwoTensor

    plan = executor.lower(capture(lambda x: x.tanh() + 1, [torch.randn(3)]))
    a, b = torch.randn(3), torch.randn(3)
    (out,) = plan([TwoTensor(a, b)])
    assert same_bits(out.a, a.tanh() + 1) and same_bits(out.b, b.tanh() + 1)


# ---- threads, re-entrance, errors


def test_threads_share_a_plan():
    step, values = gradients(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))
    inputs = [[torch.randn(4, 8), *values] for _ in range(4)]
    plan = executor.lower(capture(step, inputs[0]))
    expected = [plan(list(values)) for values in inputs]
    results = {}

    def work(number):
        results[number] = [plan(list(inputs[number])) for _ in range(50)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for number, runs in results.items():
        for run in runs:
            [assert_same(got, want) for got, want in zip(run, expected[number], strict=True)]


def test_a_python_op_may_run_a_plan(python_op):
    inner = executor.lower(capture(lambda x: x.exp(), [torch.randn(3)]))
    python_op["call"] = lambda x: inner([x])[0]
    outer = executor.lower(capture(lambda x: torch.ops.gradc_test.call(x).neg(), [torch.randn(3)]))
    x = torch.randn(3)
    assert same_bits(outer([x])[0], x.exp().neg())


def test_an_error_keeps_its_type_and_the_next_run_works(python_op):
    class Special(Exception):
        pass

    def fail(x):
        raise Special("from inside")

    python_op["call"] = lambda x: x.clone()
    plan = executor.lower(capture(lambda x: torch.ops.gradc_test.call(x.exp()).neg(), [torch.randn(3)]))
    python_op["call"] = fail
    with pytest.raises(Special, match="from inside"):
        plan([torch.randn(3)])
    python_op["call"] = lambda x: x.clone()
    assert same_bits(plan([torch.ones(3)])[0], torch.ones(3).exp().neg())


def test_torch_errors_are_what_eager_raises():
    plan = executor.lower(capture(lambda x, i: x[i], [torch.randn(3), torch.tensor([1])]))
    with pytest.raises(IndexError, match="out of bounds"):
        plan([torch.randn(3), torch.tensor([7])])
    with pytest.raises(RuntimeError, match="takes 2 inputs, got 1"):
        plan([torch.randn(3)])


def test_a_higher_order_operator_is_unsupported():
    slots = (Slot("x"), Slot("y"))
    call = Instruction(torch.ops.higher_order.cond, (Ref(0),), {}, (1,))
    with pytest.raises(UnsupportedError, match="without a schema"):
        executor.lower(Program("hop", slots, (0,), {}, (call,), (Ref(1),)))


# ---- symbolic sizes


def test_symbolic_sizes_are_read_off_the_inputs():
    s0, s1 = sympy.Symbol("s0", integer=True), sympy.Symbol("s1", integer=True)
    slots = (Slot("x"), Slot("n"), Slot("view"), Slot("scaled"), Slot("filled"))
    program = Program(
        "dynamic",
        slots,
        (0, 1),
        {},
        (
            Instruction(aten.view.default, (Ref(0), [Sym(s0 * 2), -1]), {}, (2,)),
            Instruction(aten.mul.Tensor, (Ref(2), Sym(s0 / 2.0, float)), {}, (3,)),
            Instruction(aten.new_zeros.default, (Ref(0), [Sym(s1), 3]), {}, (4,)),
        ),
        (Ref(3), Ref(4), Sym(s0 + s1), None),
        {s0: ("size", 0, 0), s1: ("int", 1, 0)},
    )
    plan = executor.lower(program)
    for size in (2, 4, 2, *range(1, 100)):
        x = torch.randn(size, 4)
        scaled, filled, total, nothing = plan([x, 5])
        assert same_bits(scaled, x.view(size * 2, -1) * (size / 2.0))
        assert (tuple(filled.shape), total, nothing) == ((5, 3), size + 5, None)


def test_tensors_on_another_device_go_through_the_dispatcher():
    program = capture(lambda x: [(x @ x).tanh(), x.t(), x.to("meta") + 1], [torch.randn(3, 3)])
    assert [str(step.device) for step in plan_spec(program).steps] == ["cpu", "cpu", "cpu", "None", "meta"]
    plan = executor.lower(program)
    for x in (torch.randn(3, 3), torch.empty(3, 3, device="meta"), torch.randn(3, 3)):
        product, turned, elsewhere = plan([x])
        assert product.device == turned.device == x.device and elsewhere.device.type == "meta"
        if not x.is_meta:
            assert same_bits([product, turned], [(x @ x).tanh(), x.t()])
