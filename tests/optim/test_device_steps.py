"""Native steps on a device: the simulated one of tests.devices, which takes kernels here (tests/optim/host_kernels.py).

Each test is a text that runs in a process which has that device. It prints what is wrong.
"""

import textwrap
from typing import Any

from tests.devices.processes import in_python
from tests.optim.test_native_step import ALL

BEGIN = """
import copy, functools, io, sys
import torch
from torch import nn, optim
import gradc
from gradc.bits import same_bits
from tests.optim import host_kernels
from tests.optim.test_native_step import ALL, flat, train
host_kernels.add_simulated_card()
torch.set_num_threads(1)
dev = torch.device("simulated", 0)

def network(dtype=torch.float32):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(7, 17), nn.Tanh(), nn.Linear(17, 3), nn.Linear(3, 70)).to(dtype).to(dev)
    net.scale, net.nothing = (nn.Parameter(x.to(dtype).to(dev)) for x in (torch.tensor(1.5), torch.zeros(0, 3)))
    return net

def gradients(net):
    x = torch.randn(4, 7, dtype=net[0].weight.dtype).to(dev)
    ((net(x) * net.scale).square().mean() + net.nothing.sum()).backward()

train = functools.partial(train, num_steps=4, parts=(network, gradients))

def grads(net):
    return [None if p.grad is None else p.grad.clone() for p in net.parameters()]

def check(what, make, want, **options):
    gradc.counters.clear()
    (net, optimizer), (own, compiled) = train(make, False, **options), train(make, True, **options)
    (a, keys), (b, own_keys) = flat(net, optimizer), flat(own, compiled)
    bad = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if not same_bits(x[0], y[0]) or x[1:] != y[1:]]
    if bad or keys != own_keys or not same_bits(grads(net), grads(own)):
        print("DIFFERS:", what, bad)
    if dict(gradc.counters["optim"]) != want:
        print("COUNTED:", what, dict(gradc.counters["optim"]))
"""


def wrong(text: str) -> str:
    done = in_python(BEGIN + textwrap.dedent(text))
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_bits_of_all_optimizers(of_the_day: Any) -> None:
    found = wrong(f"""
        for number in {of_the_day(range(len(ALL)), 6)}:
            name, settings = ALL[number]
            dtype = (torch.float32, torch.float64)[number % 2]
            make = lambda params: getattr(optim, name)(params, **settings)
            check((name, settings, dtype), make, {{"native steps": 4}}, dtype=dtype)
    """)
    assert found == ""


def test_groups_schedules_hooks_and_checkpoints() -> None:
    """Step counts that differ in a group, later groups, frozen parameters, rates that change, state that is loaded."""
    found = wrong("""
        def between(number, optimizer, net):
            if number == 1:
                optimizer.add_param_group({"params": [net.scale, net.nothing], "lr": 0.5, "amsgrad": True})
            net[2].weight.requires_grad_(number != 2)
            net[3].bias.requires_grad_(number >= 3)
            optimizer.param_groups[0]["lr"] *= 0.9
            if number == 4:
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                optimizer.load_state_dict(torch.load(file))
            if number == 5:
                optimizer.register_step_pre_hook(lambda own, *_: own.param_groups[0].update(weight_decay=0.2))

        make = lambda params: optim.AdamW(list(params)[2:], lr=0.1)
        check("groups", make, {"native steps": 15}, num_steps=8, between=between)

        def scheduled(is_compiled):
            net = network()
            optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            optimizer = gradc.compile(optimizer) if is_compiled else optimizer
            scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
            torch.manual_seed(2)
            for _ in range(6):
                gradients(net)
                optimizer.step()
                scheduler.step()
            return [p.detach() for p in net.parameters()], scheduler.get_last_lr()

        if not same_bits(scheduled(False), scheduled(True)):
            print("DIFFERS: scheduled")
    """)
    assert found == ""


def test_what_torch_does_is_counted() -> None:
    """Nesterov's SGD over lists changes the gradients themselves; of buffers, all are new or none."""
    found = wrong("""
        def thaw(number, optimizer, net):
            net.scale.requires_grad_(number >= 1)

        def transposed(number, optimizer, net):
            net[0].weight.register_post_accumulate_grad_hook(lambda leaf: setattr(leaf, "grad", leaf.grad.t().contiguous().t()))

        def share(number, optimizer, net):
            net[0].bias.register_post_accumulate_grad_hook(lambda leaf: setattr(leaf, "grad", leaf.detach()))

        by_torch = lambda reason, number=4: {f"by torch: {reason}": number}
        check("loop", lambda params: optim.Adam(params, foreach=False), by_torch("foreach=False is asked for"))
        check("lists", lambda params: optim.Adam(params, foreach=True), {"native steps": 4})
        check("rate", lambda params: optim.SGD(params, lr=torch.tensor(0.1)), by_torch("lr that is no number"))
        check("float16", optim.Adam, by_torch("parameter that is neither float32 nor float64"), dtype=torch.float16)
        check("transposed", optim.Adam, by_torch("gradient that is laid out otherwise than its parameter"), between=transposed)
        check("shared", optim.Adam, by_torch("parameter, gradient and state that share memory"), between=share)
        uneven = {"native steps": 3, **by_torch("state that only some parameters have", 1)}
        check("uneven", lambda params: optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True), uneven, between=thaw)
        for is_compiled in (False, True):
            a, b = nn.Parameter(torch.ones(3).to(dev)), nn.Parameter(torch.ones(3))
            optimizer = optim.SGD([a, b], lr=0.1)
            gradc.compile(optimizer) if is_compiled else None
            a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
            optimizer.step()
        print(gradc.counters["optim"]["by torch: parameter of a kind that only torch's own step takes"])
    """)
    assert found == "1\n"


def test_inside_a_compiled_step() -> None:
    """And a known step asks the device for nothing but the launch; clearing gradients for nothing at all."""
    found = wrong("""
        def run(is_compiled):
            net = network()
            optimizer = optim.AdamW(net.parameters(), lr=0.1)

            def step(x):
                optimizer.zero_grad()
                loss = (net(x) * net.scale).square().mean()
                loss.backward()
                optimizer.step()
                return loss

            step = gradc.compile(step) if is_compiled else step
            torch.manual_seed(3)
            losses = [step(torch.randn(4, 7).to(dev)).detach() for _ in range(4)]
            return [losses, [p.detach() for p in net.parameters()]]

        if not same_bits(run(False), run(True)):
            print("DIFFERS")
        print(dict(gradc.counters["optim"]), gradc.counters["fallbacks"].get("optimizer", 0))

        net, optimizer = train(optim.AdamW, True)
        torch.ops.simulated.watch(True)
        optimizer.step()
        optimizer.zero_grad()
        print(torch.ops.simulated.watch(False), all(p.grad is None for p in net.parameters()))
    """)
    assert found == "{'native steps': 4} 0\n[] True\n"
