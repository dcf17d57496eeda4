"""Whole training steps compiled, their optimizer's step too: natively or eagerly, for traced it would round otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import gradc
from gradc.bits import same_bits
from gradc.errors import GradcError
from tests.oracle import check

Make = Callable[[Iterable[nn.Parameter]], optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda weights: optim.SGD(weights, lr=0.05),
    "SGD, momentum": lambda weights: optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=0.1),
    "SGD, foreach": lambda weights: optim.SGD(weights, lr=0.05, foreach=True),
    "SGD, fused": lambda weights: optim.SGD(weights, lr=0.05, fused=True),
    "Adam": lambda weights: optim.Adam(weights, lr=0.05),
    "Adam, foreach": lambda weights: optim.Adam(weights, lr=0.05, foreach=True),
    "AdamW": lambda weights: optim.AdamW(weights, lr=0.05, amsgrad=True),
    "RMSprop": lambda weights: optim.RMSprop(weights, lr=0.05, momentum=0.9, centered=True),
    "Adagrad": lambda weights: optim.Adagrad(weights, lr=0.05),
    "NAdam": lambda weights: optim.NAdam(weights, lr=0.05),
    "RAdam": lambda weights: optim.RAdam(weights, lr=0.05),
    "Rprop": lambda weights: optim.Rprop(weights, lr=0.05),
}
NATIVE = ("SGD", "SGD, momentum", "Adam", "AdamW", "NAdam", "RMSprop", "Adagrad", "RAdam")
NUM_STEPS = 4


def by_torch(name: str) -> dict[str, int]:
    """The fallbacks to be counted: one for each step that is not native."""
    return {} if name in NATIVE else {"optimizer": NUM_STEPS}


class Signs(optim.Optimizer):
    """A user's own: steps by the sign of a running mean."""

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        super().__init__(weights, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["mean"] = torch.zeros_like(weight)
                state["mean"].lerp_(weight.grad, 0.1)
                weight.add_(state["mean"].sign(), alpha=-group["lr"])


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))


def states(optimizer: optim.Optimizer) -> list[Any]:
    return [dict(state) for state in optimizer.state.values()]


def whole_step(make: Make, decay: float = 0.5) -> Callable[..., Any]:
    """A training step compiled as one function, clipping and schedule included."""

    def run(compile: Any, net: nn.Module) -> Any:
        optimizer = make(net.parameters())
        schedule = optim.lr_scheduler.StepLR(optimizer, 2, decay)

        def train(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            return loss

        train = compile(train)
        losses = []
        for _ in range(NUM_STEPS):
            losses.append(train(torch.randn(5, 8)).detach())
            schedule.step()
        return losses, states(optimizer)

    return run


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_whole_step(name: str) -> None:
    report = check(whole_step(OPTIMIZERS[name]), net, allow_fallback=True)
    assert report.fallbacks == by_torch(name)


@pytest.mark.parametrize("place", ["first", "last", "none"])
def test_a_schedule_that_wraps_the_step(place: str) -> None:
    """It notes in a function of its own that the step was called, and warns where it was not."""

    def run(compile: Any, net: nn.Module) -> Any:
        optimizer = optim.Adam(net.parameters())
        schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (i + 1))

        def train(x: Tensor) -> Tensor:
            if place == "first":
                optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            if place == "last":
                optimizer.zero_grad()
            return loss

        train, losses = compile(train), []
        for _ in range(NUM_STEPS):
            losses.append(train(torch.randn(5, 8)).detach())
            schedule.step()
        return losses, states(optimizer), optimizer._opt_called

    check(run, net)
    torch._dynamo.reset()
    gradc.counters.clear()
    run(gradc.compile, net())
    assert not gradc.counters["uncompiled"] and gradc.counters["optim"]["native steps"] == NUM_STEPS


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_alone(name: str) -> None:
    def run(compile: Any, net: nn.Module) -> Any:
        optimizer = OPTIMIZERS[name](net.parameters())
        step = compile(optimizer.step)
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            net(torch.randn(5, 8)).square().mean().backward()
            step()
        return states(optimizer)

    assert check(run, net, allow_fallback=True).fallbacks == by_torch(name)


def test_closure() -> None:
    def run(compile: Any, net: nn.Module) -> Any:
        optimizer, x = optim.LBFGS(net.parameters(), max_iter=3), torch.randn(5, 8)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            return loss

        step = compile(lambda: optimizer.step(closure))
        return [step() for _ in range(NUM_STEPS)]

    assert check(run, net, allow_fallback=True).fallbacks == {"optimizer": NUM_STEPS}


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_a_closure_made_inside_runs_compiled(line_search: str | None) -> None:
    def run(compile: Any, net: nn.Module) -> Any:
        optimizer, losses = optim.LBFGS(net.parameters(), max_iter=3, line_search_fn=line_search), list[float]()

        @compile
        def step(x: Tensor) -> Tensor:
            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = net(x).square().mean()
                losses.append(loss.item())
                loss.backward()
                return loss

            return optimizer.step(closure).detach()

        return [step(torch.randn(5, 8)) for _ in range(NUM_STEPS)], losses

    gradc.reset()
    check(run, net, allow_fallback=True)
    model = net()
    optimizer = optim.LBFGS(model.parameters(), max_iter=3, line_search_fn=line_search)

    def step(x: Tensor) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    gradc.reset()
    compiled = gradc.compile(step, options={"compare_with_eager": False})
    for _ in range(3):
        compiled(torch.randn(5, 8))
    assert gradc.counters["stats"]["unique_graphs"] == 1
    assert dict(gradc.counters["fallbacks"]) == {"optimizer": 3} and not gradc.counters["uncompiled"]


class Damped(optim.Adam):
    """A user's own that calls torch's."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad.mul_(0.5)
        super().step()


def test_of_the_users_own_that_calls_torchs() -> None:
    """A class's first object puts torch's layer of hooks, which gradc looks for, around its step."""
    optim.Adam(net().parameters())
    check(whole_step(lambda weights: Damped(weights, lr=0.05)), net)


def test_of_the_users_own() -> None:
    check(whole_step(Signs, decay=1.0), net)


def test_fullgraph_says_why() -> None:
    model = net()
    optimizer = optim.Rprop(model.parameters(), lr=0.05)
    model(torch.randn(5, 8)).sum().backward()
    with pytest.raises(GradcError, match="optimizer: Rprop"):
        gradc.compile(optimizer.step, fullgraph=True)()
    with pytest.raises(Exception, match="runs the steps of optimizers as eager does"):
        gradc.compile(lambda: optimizer.step(), fullgraph=True)()


def test_fullgraph_takes_a_native_step() -> None:
    model = net()
    optimizer = optim.Adam(model.parameters())

    def train(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    gradc.compile(train, fullgraph=True)(torch.randn(5, 8))
    optimizer.param_groups[0]["foreach"] = True
    with pytest.raises(GradcError, match="optimizer: foreach is asked for"):
        gradc.compile(train, fullgraph=True)(torch.randn(5, 8))


def test_native_step_compiles_its_closure() -> None:
    def run(compile: Any, net: nn.Module) -> Any:
        optimizer, x = optim.Adam(net.parameters(), lr=0.1), torch.randn(5, 8)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            return loss

        step = compile(lambda: optimizer.step(closure))
        return [step() for _ in range(NUM_STEPS)], states(optimizer)

    check(run, net)


def test_native_steps_leave_the_optimizer_as_it_is() -> None:
    """Outside of compiled code torch's own step runs, hooks see what they see in eager, and nothing hangs on the object."""
    model, seen = net(), []
    optimizer = optim.Adam(model.parameters())
    attributes, step = set(vars(optimizer)), optim.Adam.step
    optimizer.register_step_pre_hook(lambda *given: seen.append(given))
    compiled = gradc.compile(lambda closure: optimizer.step(closure))
    closure = lambda: model(torch.ones(5, 8)).sum().backward()
    compiled(closure)
    gradc.counters.clear()
    optimizer.step(closure)
    assert not gradc.counters["optim"]
    assert set(vars(optimizer)) == attributes
    assert optim.Adam.step is step
    assert seen == [(optimizer, (optimizer, closure), {})] * 2


def test_other_compilers_trace_them() -> None:
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model(torch.randn(5, 8)).sum().backward()
    gradc.compile(optimizer.step)()
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compile(optimizer.step, backend=backend)()
    assert sum(len(graph.graph.find_nodes(op="get_attr")) for graph in graphs) >= 6


def test_tensors_on_the_graph() -> None:
    """A state that Dynamo makes a constant of the graph is read and written anew at each call."""

    def run(compile: Any, net: nn.Module) -> Any:
        optimizer = Signs(net.parameters())
        step, seen = compile(optimizer.step), []
        for number in range(NUM_STEPS):
            optimizer.zero_grad()
            net(torch.randn(5, 8)).square().mean().backward()
            step()
            if number == 2:
                for state in optimizer.state.values():
                    state["mean"].zero_()
            seen.append([weight.detach().clone() for weight in net.parameters()])
        return seen

    check(run, net)


def test_settings_are_read_as_they_are_and_may_change() -> None:
    """A learning rate that changes is an input from its second value on; what nobody reads is no reason to capture."""

    def train(compile: Any) -> tuple[list[Any], list[int]]:
        torch.manual_seed(0)
        model = net()
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        seen, num_graphs = list[Any](), list[int]()

        @compile
        def step(x: Tensor) -> tuple[Any, ...]:
            group = optimizer.param_groups[0]
            loss = model(x).square().mean() * (1 + group["lr"])
            loss.backward()
            optimizer.step()
            return loss.detach(), group["lr"], group["capturable"]

        for number in range(6):
            seen += step(torch.linspace(-1, 1, 24).view(3, 8))
            schedule.step()
            optimizer.param_groups[0]["weight_decay"] = 0.1 * number
            num_graphs.append(gradc.counters["stats"]["unique_graphs"])
        return [*seen, *model.parameters()], num_graphs

    eager, _ = train(lambda step: step)
    gradc.reset()
    compiled, num_graphs = train(gradc.compile)
    assert same_bits(eager, compiled)
    assert num_graphs[1:] == [num_graphs[0] + 1] * 5
