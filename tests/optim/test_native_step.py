"""A compiled optimizer leaves parameters and state as torch's own does, bit for bit, and is torch's own in all other ways."""

import copy
import io
import sys

import pytest
import torch
from torch import nn, optim

import gradc
from gradc import native
from gradc.bits import same_bits
from gradc.optim import formulas, proof, rules
from tests.forked import python

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))

CASES = {
    "Adam": [{}, {"amsgrad": True}, {"weight_decay": 0.1}, {"maximize": True}, {"betas": (0.3, 0.45)}, {"lr": 0.5}],
    "AdamW": [{}, {"amsgrad": True, "weight_decay": 0.3}, {"maximize": True, "weight_decay": 0.0}],
    "NAdam": [{}, {"weight_decay": 0.1, "maximize": True}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RAdam": [{}, {"weight_decay": 0.1, "maximize": True}, {"weight_decay": 0.1, "decoupled_weight_decay": True},
              {"betas": (0.3, 0.45)}],
    "SGD": [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
            {"lr": 0.1, "momentum": 0.7, "dampening": 0.2, "maximize": True}],
    "RMSprop": [{}, {"centered": True}, {"momentum": 0.9, "weight_decay": 0.1},
                {"centered": True, "momentum": 0.5, "maximize": True}],
    "Adagrad": [{}, {"lr_decay": 0.1, "weight_decay": 0.1}, {"initial_accumulator_value": 0.5, "maximize": True}],
    "Adadelta": [{}, {"rho": 0.5, "weight_decay": 0.1, "maximize": True}],
    "Adamax": [{}, {"weight_decay": 0.1, "maximize": True}],
}  # fmt: skip
ALL = [(name, settings) for name, cases in CASES.items() for settings in cases]


def network(dtype=torch.float32):
    """Sizes around multiples of a vector's width, a channels-last weight, an empty and a 0-dimensional parameter."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
    net = nn.Sequential(conv, nn.Flatten(), nn.Linear(5 * 4, 17), nn.Linear(17, 3))
    net.scale, net.nothing = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.zeros(0, 3))
    return net.to(dtype)


def gradients(net):
    """One backward pass on new data; what is empty gets an empty gradient."""
    x = torch.randn(4, 3, 4, 4, dtype=net[0].weight.dtype)
    ((net(x) * net.scale).square().mean() + net.nothing.sum()).backward()


def train(make, is_compiled, num_steps=6, dtype=torch.float32, between=lambda number, optimizer, net: None, parts=None):
    """``parts``: what makes the network, of a dtype, and what runs its backward; ``network`` and ``gradients`` if not given."""
    make_network, backward = parts or (network, gradients)
    net = make_network(dtype)
    optimizer = make(net.parameters())
    if is_compiled:
        assert gradc.compile(optimizer) is optimizer
    torch.manual_seed(1)
    for number in range(num_steps):
        between(number, optimizer, net)
        optimizer.zero_grad()
        backward(net)
        optimizer.step()
    return net, optimizer


def flat(net, optimizer):
    """All that an optimizer's step changes: parameters, state, their versions and strides."""
    states = [optimizer.state[p] for group in optimizer.param_groups for p in group["params"]]
    tensors = [*net.parameters(), *(value for state in states for value in state.values() if isinstance(value, torch.Tensor))]
    return [(tensor.detach(), tensor.stride(), tensor._version) for tensor in tensors], [list(state) for state in states]


def check(make, **options):
    """Train by torch's own step and by ours; what they leave must be the same. Returns what was counted."""
    gradc.counters.clear()
    eager, compiled = flat(*train(make, False, **options)), flat(*train(make, True, **options))
    assert eager[1] == compiled[1]
    for (a, *other_a), (b, *other_b) in zip(eager[0], compiled[0], strict=True):
        assert same_bits(a, b) and other_a == other_b
    return dict(gradc.counters["optim"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "settings"), ALL)
def test_bits(name, settings, dtype):
    counted = check(lambda params: getattr(optim, name)(params, **settings), dtype=dtype, num_steps=8)
    assert counted == {"native steps": 8}


@pytest.mark.parametrize("num_threads", [1, 2])
def test_large_parameters_on_threads(num_threads):
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        params = [[nn.Parameter(torch.linspace(-1, 1, 100_001))] for _ in range(2)]
        for (param,), is_compiled in zip(params, (False, True)):
            optimizer = optim.Adam([param], lr=0.1)
            optimizer = gradc.compile(optimizer) if is_compiled else optimizer
            for number in range(3):
                param.grad = torch.sin(param.detach() * (number + 1))
                optimizer.step()
        assert same_bits(params[0][0].detach(), params[1][0].detach())
    finally:
        torch.set_num_threads(before)


def test_schedules_groups_frozen_and_added_parameters():
    def make(params):
        _, _, first, *rest = params  # without net.scale and net.nothing
        return optim.AdamW([{"params": [first], "lr": 0.1, "weight_decay": 0.3}, {"params": rest}], lr=0.01)

    def between(number, optimizer, net):
        if number == 1:
            optimizer.add_param_group({"params": [net.scale, net.nothing], "lr": 0.5, "amsgrad": True})
        if number == 2:
            net[2].weight.requires_grad_(False)
            optimizer.zero_grad()
        if number == 4:
            net[2].weight.requires_grad_(True)
        optimizer.param_groups[0]["lr"] *= 0.9
        optimizer.param_groups[1]["betas"] = (0.9 - 0.1 * number, 0.99)

    assert set(check(make, between=between)) == {"native steps"}


def test_lr_scheduler_counts_the_steps(recwarn):
    def schedule(is_compiled):
        net = network()
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        optimizer = gradc.compile(optimizer) if is_compiled else optimizer
        scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        for _ in range(5):
            gradients(net)
            optimizer.step()
            scheduler.step()
        return [p.detach() for p in net.parameters()], scheduler.get_last_lr()

    assert same_bits(*(schedule(is_compiled) for is_compiled in (False, True)))
    assert not [warning for warning in recwarn if "lr_scheduler" in str(warning.message)]


def test_hooks_and_closure_run():
    def run(is_compiled):
        events, net = [], network()
        optimizer = optim.Adam(net.parameters())
        optimizer = gradc.compile(optimizer) if is_compiled else optimizer
        optimizer.register_step_pre_hook(lambda *_: events.append("before"))
        optimizer.register_step_post_hook(lambda *_: events.append("after"))

        def closure():
            events.append(("closure", torch.is_grad_enabled()))
            optimizer.zero_grad()
            gradients(net)
            return 3.0

        torch.manual_seed(2)
        return [optimizer.step(closure), events, *(p.detach() for p in net.parameters())]

    assert same_bits(run(False), run(True))


def test_a_checkpoint_goes_from_torch_to_gradc_and_back():
    make = lambda params: optim.Adam(params, amsgrad=True)
    eager = [p.detach() for p in train(make, False, num_steps=6)[0].parameters()]
    net = network()
    torch.manual_seed(1)
    state = make(net.parameters()).state_dict()
    for is_compiled in (False, True, False):
        optimizer = make(net.parameters())
        optimizer = gradc.compile(optimizer) if is_compiled else optimizer
        optimizer.load_state_dict(state)
        for _ in range(2):
            optimizer.zero_grad()
            gradients(net)
            optimizer.step()
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        state = torch.load(file)
    assert same_bits(eager, [p.detach() for p in net.parameters()])


def test_a_copy_of_a_compiled_optimizer_steps_its_own_parameters():
    net = network()
    optimizer = gradc.compile(optim.Adam(net.parameters()))
    other_net, other = copy.deepcopy((net, optimizer))
    before = [p.detach().clone() for p in net.parameters()]
    gradients(other_net)
    other.step()
    assert same_bits(before, [p.detach() for p in net.parameters()])
    assert not same_bits(before, [p.detach() for p in other_net.parameters()])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda params: optim.Adam(params, foreach=True), "foreach is asked for"),
        (lambda params: optim.Adam(params, fused=True), "fused is asked for"),
        (lambda params: optim.Adam(params, lr=torch.tensor(0.01)), "lr that is no number"),
    ],
)
def test_what_torch_does_is_counted(make, reason):
    assert check(make) == {f"by torch: {reason}": 6}


def test_bfloat16_parameters_are_torchs():
    counted = check(lambda params: optim.Adam(params), dtype=torch.bfloat16)
    assert counted == {"by torch: parameter that is neither float32 nor float64": 6}


def test_modes_see_torchs_calls():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            seen.append(str(op))
            return op(*args, **(kwargs or {}))

    seen: list[str] = []
    param = nn.Parameter(torch.ones(3))
    optimizer = gradc.compile(optim.SGD([param], lr=0.1))
    param.grad = torch.ones(3)
    with Names():
        optimizer.step()
    assert "aten.add_.Tensor" in seen


def test_a_gradient_that_is_the_parameter_itself_is_torchs():
    def run(is_compiled):
        param = nn.Parameter(torch.linspace(1, 2, 10))
        optimizer = optim.SGD([param], lr=0.1, momentum=0.0, weight_decay=0.1)
        optimizer = gradc.compile(optimizer) if is_compiled else optimizer
        param.grad = param.detach()
        optimizer.step()
        return param.detach()

    assert same_bits(run(False), run(True))
    assert gradc.counters["optim"]["by torch: parameter, gradient and state that share memory"] == 1


def test_expanded_and_transposed_gradients():
    def run(is_compiled):
        params = [nn.Parameter(torch.linspace(1, 2, 12).view(3, 4)) for _ in range(2)]
        optimizer = optim.Adam(params)
        optimizer = gradc.compile(optimizer) if is_compiled else optimizer
        for _ in range(2):
            params[0].grad, params[1].grad = torch.tensor(2.0).expand(3, 4), torch.linspace(0, 1, 12).view(4, 3).t()
            optimizer.step()
        return [p.detach() for p in params]

    assert same_bits(run(False), run(True))


def test_a_later_backward_notices_that_the_parameter_changed():
    w = nn.Parameter(torch.ones(3))
    optimizer = gradc.compile(optim.SGD([w], lr=0.1))
    loss = (w * w).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_sparse_gradients_raise_what_they_raise():
    w = nn.Embedding(4, 3, sparse=True)
    optimizer = gradc.compile(optim.Adam(w.parameters()))
    w(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="Adam does not support sparse gradients"):
        optimizer.step()


def test_compiling_twice_is_compiling_once_and_torch_stays_as_it_is():
    module = sys.modules["torch.optim.adam"]
    functions = optim.Adam.step, module.adam
    optimizer = optim.Adam([nn.Parameter(torch.ones(2))])
    step = gradc.compile(optimizer).step
    assert gradc.compile(optimizer).step == step
    assert (optim.Adam.step, module.adam) == functions


def test_other_optimizers_are_refused():
    class Mine(optim.Adam):
        def step(self, closure=None):
            return super().step(closure)

    for kind in (optim.LBFGS, Mine):
        with pytest.raises(gradc.ConfigError, match=f"no native step for {kind.__name__}. There is one for torch.optim's Adam"):
            gradc.compile(kind([nn.Parameter(torch.ones(2))]))


def test_a_subclass_with_torchs_own_step():
    class Mine(optim.Adam):
        pass

    assert check(Mine) == {"native steps": 6}


def test_inside_a_compiled_training_step():
    def run(is_compiled):
        net = network()
        optimizer = optim.Adam(net.parameters())

        def step(x):
            optimizer.zero_grad()
            loss = (net(x) * net.scale).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        if is_compiled:
            gradc.compile(optimizer)
            step = gradc.compile(step)
        torch.manual_seed(3)
        losses = [step(torch.randn(4, 3, 4, 4)).detach() for _ in range(4)]
        return [losses, [p.detach() for p in net.parameters()]]

    gradc.counters.clear()
    assert same_bits(run(False), run(True))
    assert gradc.counters["optim"] == {"native steps": 4}


def test_a_profiler_hears_of_the_step():
    net, optimizer = train(optim.Adam, True)
    with torch.profiler.profile() as profile:
        optimizer.step()
    assert "Optimizer.step#Adam.step" in {event.key for event in profile.key_averages()}


def test_parameters_in_a_tuple_and_state_of_a_kind_of_its_own():
    """What torch's own loop takes and ours does not."""

    def change(number, optimizer, net):
        group = optimizer.param_groups[0]
        group["params"] = (tuple, list)[number % 2](group["params"])
        if number == 3:
            state = optimizer.state[net.scale]
            state["exp_avg"] = nn.Parameter(state["exp_avg"], requires_grad=False)

    assert check(optim.Adam, between=change) == {"native steps": 6}


def test_a_subclass_with_its_own_way_of_reading_groups():
    class Reversed(optim.Adam):
        def _init_group(self, group, *lists):
            found = super()._init_group(group, *lists)
            lists[1][0] = lists[1][0] * 2
            return found

    assert check(Reversed) == {"native steps": 6}


def test_some_parameters_have_no_gradient_yet():
    """Their state is made at a later step; step counts differ within one group."""

    def thaw(number, optimizer, net):
        net.scale.requires_grad_(number >= 2)
        net[0].weight.requires_grad_(number != 4)

    for make in (optim.Adam, lambda params: optim.SGD(params, lr=0.1, momentum=0.9), optim.Adagrad):
        assert check(make, between=thaw)["native steps"] >= 6


@pytest.mark.parametrize("name", ["SGD", "NAdam"])  # groups that are known, and columns
def test_a_rate_that_is_none_in_float32_raises_what_it_raises(name):
    """It was infinite."""
    param = nn.Parameter(torch.ones(3))
    optimizer = gradc.compile(getattr(optim, name)([param], lr=0.1))
    param.grad = torch.full((3,), 1e-30)
    optimizer.step()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 1e39
    with pytest.raises(RuntimeError, match="value cannot be converted to type float without overflow"):
        optimizer.step()


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_step_without_any_gradient_is_counted(name):
    """Of optimizers that have parameters of two kinds, as RAdam's, nothing was."""
    optimizer = getattr(optim, name)([torch.ones(2, requires_grad=True)])
    before = gradc.counters["optim"]["native steps"]
    gradc.compile(optimizer).step()
    assert gradc.counters["optim"]["native steps"] == before + 1


@pytest.mark.parametrize("call", [formulas.Call("mul", "param", ("param",), lambda s, step: 0.3 * s["lr"])])
def test_a_formula_with_other_bits_is_not_used(call, monkeypatch):
    """The proof sees a wrong formula, and the step is then torch's own."""
    wrong = formulas.Formula(("param", "grad"), (call,))
    sgd = rules.RULES["sgd"]
    rule = rules.Rule(sgd.columns, sgd.numbers, lambda settings, case: wrong)
    monkeypatch.setitem(rules.RULES, "sgd", rule)
    monkeypatch.setattr(proof, "_known", {})
    assert check(lambda params: optim.SGD(params, lr=0.1)) == {"by torch: other bits than torch's on this machine": 6}


def test_an_update_refuses_operations_that_make_no_sense():
    extension = native.extension
    with pytest.raises(ValueError, match="names value 7, which there is not"):
        extension.BlockUpdate(2, 1, [extension.Operation(extension.UpdateOp.neg, 7, 0)])
    with pytest.raises(ValueError, match="a result and at least one operand"):
        extension.BlockUpdate(2, 1, [extension.Operation(extension.UpdateOp.neg, -1, 0)])
    with pytest.raises(ValueError, match="from 2 operands on, and at most 12 values"):
        extension.BlockUpdate(2, 100, [])


_THREADS = """
import threading, torch, gradc
def step():
    weight = torch.ones(3, requires_grad=True)
    optimizer = gradc.compile(torch.optim.Adam([weight]))
    weight.grad = torch.ones(3)
    optimizer.step()
    found.append(torch.get_num_threads())
found = []
torch.set_num_threads(NUMBER) if NUMBER else None
before = torch.get_num_threads()
step()
thread = threading.Thread(target=step)
thread.start()
thread.join()
print(set(found) == {before}, gradc.counters["optim"]["native steps"])
"""


@pytest.mark.parametrize("number", ["0", "1", "2"])
def test_a_step_leaves_the_number_of_threads(number: str) -> None:
    """torch takes MKL's number of threads for its own, where a thread comes to its first loop."""
    run = python("-c", _THREADS.replace("NUMBER", number))
    assert run.stdout == "True 2\n", run.stderr
