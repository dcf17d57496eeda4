"""Programs whose plans are recorded as graphs of the device and replayed, each beside the same in eager.

    python -m tests.devices.graphs [cuda]   each on the simulated device, or a GPU: a line for each, "NAME: " and what is wrong

A replay on the simulated device leaves nothing of what an earlier one made in the memory of its graph (device.cpp), so what is
handed out too long, or read too late, shows.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator

import torch
from torch import nn

import gradc
from gradc import native
from gradc.bits import same_bits
from tests.devices import simulated

PROGRAMS: dict[str, Callable[[torch.device], None]] = {}


def program(function: Callable[[torch.device], None]) -> Callable[[torch.device], None]:
    PROGRAMS[function.__name__] = function
    return function


def network(device: torch.device, *between: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), *between, nn.Linear(8, 4)).to(device)


class Pair:
    """The same network twice, compiled and not, and what both have come to."""

    def __init__(self, device: torch.device, make: Callable[[torch.device], nn.Module] = network) -> None:
        self.device = device
        self.nets = [make(device), make(device)]
        self.calls = [gradc.compile(self.nets[0]), self.nets[1]]

    def batch(self, number: int, size: int = 5) -> torch.Tensor:
        return torch.randn(size, 8, generator=torch.Generator().manual_seed(number)).to(self.device)

    def train(self, num_steps: int, each: Callable[[nn.Module, nn.Module, int], object] | None = None) -> None:
        """``each`` is (what is called, its network, number of the step)."""
        for number in range(num_steps):
            for call, net in zip(self.calls, self.nets):
                torch.manual_seed(number)
                (each or self.step)(call, net, number)
            self.compare(number)

    def step(self, call: nn.Module, net: nn.Module, number: int) -> None:
        net.zero_grad()
        call(self.batch(number)).square().mean().backward()
        self.update(net)

    def update(self, net: nn.Module) -> None:
        with torch.no_grad():
            for param in net.parameters():
                param -= 0.1 * param.grad

    def compare(self, number: int) -> None:
        ours, theirs = (net.state_dict() for net in self.nets)
        for name in ours:
            assert same_bits(ours[name].cpu(), theirs[name].cpu()), f"step {number}: {name} is not eager's"
            versions = ours[name]._version, theirs[name]._version
            assert versions[0] == versions[1], f"step {number}: the version of {name} is {versions[0]}, in eager {versions[1]}"


def recorded() -> int:
    return gradc.counters["device_graphs"]["recorded"]


@contextlib.contextmanager
def replays(at_least: int) -> Iterator[None]:
    before = native.extension.num_replays()
    yield
    found = native.extension.num_replays() - before
    assert found >= at_least, f"{found} replays, not {at_least}"


@program
def a_step(device: torch.device) -> None:
    with replays(6):
        Pair(device).train(9)
    assert recorded() == 2, recorded()


@program
def dropout(device: torch.device) -> None:
    with replays(8):
        Pair(device, lambda device: network(device, nn.Dropout(0.5))).train(9)


@program
def running_statistics(device: torch.device) -> None:
    with replays(6):
        Pair(device, lambda device: network(device, nn.BatchNorm1d(8))).train(9)


@program
def losses_that_are_kept(device: torch.device) -> None:
    pair = Pair(device)
    kept: dict[nn.Module, list[torch.Tensor]] = {net: [] for net in pair.nets}
    values: list[float] = []

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        net.zero_grad()
        out = call(pair.batch(number))
        kept[net].append(out)
        out.square().mean().backward()
        pair.update(net)
        if net is pair.nets[1]:
            values.append(out.sum().item())

    with replays(20):
        pair.train(20, step)
    assert [out.sum().item() for out in kept[pair.nets[0]]] == values


@program
def gradients_that_stay(device: torch.device) -> None:
    pair = Pair(device)

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        call(pair.batch(number)).square().mean().backward()  # adds up: what is there is never cleared
        pair.update(net)

    with replays(8):
        pair.train(12, step)


@program
def gradients_that_somebody_holds(device: torch.device) -> None:
    pair = Pair(device)
    held: dict[nn.Module, list[torch.Tensor]] = {net: [] for net in pair.nets}

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        pair.step(call, net, number)
        held[net] += [param.grad for param in net.parameters()]

    pair.train(8, step)
    assert all(same_bits(ours.cpu(), theirs.cpu()) for ours, theirs in zip(*held.values()))


@program
def two_forwards_before_a_backward(device: torch.device) -> None:
    pair = Pair(device)

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        net.zero_grad()
        first, second = call(pair.batch(number)).square().mean(), call(pair.batch(100 + number)).square().mean()
        first.backward()
        second.backward()
        pair.update(net)

    with replays(20):
        pair.train(16, step)


@program
def a_graph_kept_for_a_second_backward(device: torch.device) -> None:
    pair = Pair(device)

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        net.zero_grad()
        loss = call(pair.batch(number)).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        pair.update(net)

    pair.train(9, step)


@program
def evaluation_in_between(device: torch.device) -> None:
    pair = Pair(device)

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        net.zero_grad()
        loss = call(pair.batch(number)).square().mean()
        with torch.no_grad():
            call(pair.batch(50 + number))
        loss.backward()
        pair.update(net)

    with replays(14):
        pair.train(12, step)


@program
def parameters_that_move(device: torch.device) -> None:
    pair = Pair(device)

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        if number % 6 == 5:
            for param in net.parameters():
                param.data = param.data.clone()
        pair.step(call, net, number)

    with replays(10):
        pair.train(24, step)


@program
def an_error_in_between(device: torch.device) -> None:
    pair = Pair(device)

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        with contextlib.suppress(RuntimeError):
            call(torch.ones(3, 7).to(device))
        loss = call(pair.batch(number)).square().mean()
        del loss  # and its backward never comes
        pair.step(call, net, number)

    with replays(6):
        pair.train(9, step)


@program
def sizes_that_change(device: torch.device) -> None:
    pair = Pair(device)

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        net.zero_grad()
        call(pair.batch(number, size=3 + number % 4)).square().mean().backward()
        pair.update(net)

    with replays(20):
        pair.train(32, step)


@program
def sizes_that_never_come_back(device: torch.device) -> None:
    pair = Pair(device)

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        net.zero_grad()
        call(pair.batch(number, size=3 + number)).square().mean().backward()
        pair.update(net)

    pair.train(24, step)
    assert recorded() <= 3, recorded()


@program
def inputs_that_lie_in_few_places_in_turns(device: torch.device) -> None:
    pair = Pair(device)
    places = [[pair.batch(0), pair.batch(0)] for _ in pair.nets]
    turns = [0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 1]

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        net.zero_grad()
        batch = places[pair.nets.index(net)][turns[number]]
        batch.copy_(pair.batch(number))
        call(batch).square().mean().backward()
        pair.update(net)

    with replays(24):
        pair.train(len(turns), step)
    assert recorded() <= 6, recorded()


@program
def a_switch_of_determinism(device: torch.device) -> None:
    pair = Pair(device)

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        torch.use_deterministic_algorithms(number >= 6)
        try:
            pair.step(call, net, number)
        finally:
            torch.use_deterministic_algorithms(False)

    with replays(6):
        pair.train(12, step)
    assert recorded() == 4, recorded()


@program
def two_streams(device: torch.device) -> None:
    pair = Pair(device)

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        stream = torch.Stream(device) if number > 4 else None
        torch.accelerator.synchronize(device)
        with stream or contextlib.nullcontext():
            pair.step(call, net, number)
        torch.accelerator.synchronize(device)

    pair.train(8, step)


@program
def memory_that_another_stream_reads(device: torch.device) -> None:
    pair = Pair(device)
    places: list[list[int]] = []

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        net.zero_grad()
        out = call(pair.batch(number))
        if net is pair.nets[0]:
            places.append([out.data_ptr()])
            if number in (5, 6):
                out.record_stream(torch.Stream(device))
        out.square().mean().backward()
        pair.update(net)

    pair.train(10, step)
    assert places[5] == places[4] and places[5] not in places[6:], places


@program
def a_value_that_the_host_reads(device: torch.device) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w)[x > 0].sum()

    w = torch.ones(8, device=device, requires_grad=True)
    for number in range(5):
        gradc.compile(f)(torch.arange(8.0).to(device) - number, w).backward()
    assert w.grad is not None and w.grad.cpu().sum() == sum(sum(max(n - k, 0) for n in range(8)) for k in range(5))


@program
def what_cannot_be_recorded(device: torch.device) -> None:
    x = torch.randn(8).to(device).requires_grad_()
    f = gradc.compile(lambda x: x.logcumsumexp(0).sin())  # which the simulated device refuses
    for _ in range(6):
        ours, theirs = f(x), x.logcumsumexp(0).sin()
        grads = [torch.autograd.grad(out.sum(), x)[0].cpu() for out in (ours, theirs)]
        assert same_bits(ours.detach().cpu(), theirs.detach().cpu()) and same_bits(*grads)
    reasons = gradc.counters["device_graphs"]
    assert device.type != simulated.NAME or any("logcumsumexp" in reason for reason in reasons), reasons


@program
def the_setting_is_off(device: torch.device) -> None:
    before = native.extension.num_replays()
    with gradc.config.patch(device_graphs=False):
        pair = Pair(device)
        pair.calls[0](pair.batch(0)).sum()
    gradc.config.device_graphs = False
    try:
        Pair(device).train(6)
    finally:
        gradc.config.device_graphs = True
    assert native.extension.num_replays() == before and not gradc.counters["device_graphs"]


@program
def views_of_inputs_leave(device: torch.device) -> None:
    @gradc.compile
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x * w
        return x.view(2, 4), y, y[2:]

    w = torch.ones(8, device=device, requires_grad=True)
    with replays(4):
        for number in range(8):
            x = torch.full((8,), float(number)).to(device)
            view, y, part = f(x, w)
            view.mul_(3)
            assert x.cpu()[0] == 3 * number and x._version == 1
            assert y.detach().cpu()[0] == number and part.detach().cpu()[0] == number
            assert y.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
            del view, y, part


class Steps(Pair):
    """The same with steps that are compiled whole."""

    def __init__(self, device: torch.device, make: Callable[[torch.device], nn.Module] = network) -> None:
        super().__init__(device, make)
        self.steps = [gradc.compile(self._whole(self.nets[0])), self._whole(self.nets[1])]
        self.losses: list[torch.Tensor] = [torch.empty(0)] * 2

    def _whole(self, net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        optimizer = torch.optim.AdamW(net.parameters())

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    def step(self, call: nn.Module, net: nn.Module, number: int) -> None:
        which = self.nets.index(net)
        self.losses[which] = self.steps[which](self.batch(number))
        assert which == 0 or same_bits(*(loss.cpu() for loss in self.losses)), f"step {number}: the loss is not eager's"


@program
def a_whole_step(device: torch.device) -> None:
    before = native.extension.StraightLoss.num_joined()
    with replays(10):
        Steps(device).train(20)
    assert native.extension.StraightLoss.num_joined() - before >= 14
    assert set(gradc.counters["fallbacks"]) <= {"optimizer"}, gradc.counters["fallbacks"]  # whose kernels are for GPUs


@program
def whole_steps_on_two_streams(device: torch.device) -> None:
    steps = Steps(device)

    def step(call: nn.Module, net: nn.Module, number: int) -> None:
        torch.accelerator.synchronize(device)
        with torch.Stream(device) if number > 9 else contextlib.nullcontext():
            steps.step(call, net, number)
        torch.accelerator.synchronize(device)

    steps.train(16, step)


@program
def whole_steps_over_a_leaf_whose_node_has_another_stream(device: torch.device) -> None:
    steps = Steps(device)
    with torch.Stream(device):
        held = [(param * 1).grad_fn for net in steps.nets for param in net.parameters()]
    torch.accelerator.synchronize(device)
    before = native.extension.StraightLoss.num_run()
    steps.train(8)
    assert native.extension.StraightLoss.num_run() == before
    del held
    steps.train(8)
    assert native.extension.StraightLoss.num_run() > before


@program
def whole_steps_that_add_up(device: torch.device) -> None:
    nets = [network(device), network(device)]

    def step(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = net(x).square().mean()
        loss.backward()
        return loss

    batches = [torch.randn(5, 8, generator=torch.Generator().manual_seed(number)).to(device) for number in range(12)]
    calls = [gradc.compile(step), step]
    for x in batches:
        losses = [call(net, x).item() for call, net in zip(calls, nets)]
        assert losses[0] == losses[1]
        for ours, theirs in zip(*(net.parameters() for net in nets)):
            assert same_bits(ours.grad.cpu(), theirs.grad.cpu()) and ours.grad._version == theirs.grad._version


@program
def a_gradient_that_is_the_losss_own(device: torch.device) -> None:
    leaves = [torch.ones(1, device=device, requires_grad=True) for _ in range(2)]

    def step(leaf: torch.Tensor) -> torch.Tensor:
        loss = leaf.sum()
        loss.backward()
        return loss.detach()

    calls = [gradc.compile(step), step]
    kept: list[list[torch.Tensor]] = [[], []]
    for number in range(10):
        for which, (call, leaf) in enumerate(zip(calls, leaves)):
            leaf.grad = None
            call(leaf)
            leaf.grad.mul_(number)
            kept[which].append(leaf.grad)
    assert [grad.item() for grad in kept[0]] == [grad.item() for grad in kept[1]] == [float(number) for number in range(10)]


def main(device: torch.device) -> None:
    for name, function in PROGRAMS.items():
        gradc.reset()
        try:
            function(device)
            print(f"{name}: ", flush=True)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"{name}: {type(error).__name__}: {error} at line {where.lineno}".replace("\n", " "), flush=True)


if __name__ == "__main__":
    from tests.devices.processes import BUILD

    if sys.argv[1:] != ["cuda"]:
        simulated.register(BUILD)
    main(torch.device(sys.argv[1] if sys.argv[1:] else simulated.NAME, 0))
