"""``loss.backward()`` goes straight to compiled segments: inside of compiled code, and behind it."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import gradc
from gradc import native
from gradc.bits import same_bits

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))

OPTIONS = {"compare_with_eager": False, "compile_seconds": None}


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    gradc.reset()
    yield
    gradc.reset()


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))


class Loss(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).square().mean()


PARTS = ["step", "loss", "net"]  # of a step, which is compiled


def made(part: str, compile: Callable[[Any], Any], backward: Callable[[torch.Tensor], None]) -> tuple[nn.Sequential, Any]:
    """A network and its step, a part of which is compiled; ``backward`` is called with the loss."""
    net = model()
    by_net = compile(net) if part == "net" else net
    by_loss = compile(Loss(net)) if part == "loss" else Loss(by_net)

    def step(x: torch.Tensor) -> torch.Tensor:
        net.zero_grad()
        loss = by_loss(x)
        backward(loss)
        return loss.detach()

    return net, compile(step) if part == "step" else step


def in_eager(target: Any) -> Any:
    return target


def by_gradc(target: Any) -> Any:
    return gradc.compile(target, options=OPTIONS)


def plainly(loss: torch.Tensor) -> None:
    loss.backward()


def torchs_calls(run: Callable[[], Any]) -> int:
    """How often torch's own Python begins a backward pass."""
    calls = list[str]()
    code = inspect.unwrap(torch.autograd.backward).__code__
    sys.setprofile(lambda frame, event, arg: calls.append(event) if event == "call" and frame.f_code is code else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(calls)


def settled(part: str = "step", backward: Callable[[torch.Tensor], None] = plainly) -> tuple[nn.Sequential, Callable[..., Any]]:
    net, step = made(part, by_gradc, backward)
    for _ in range(3):
        step(torch.ones(2, 3))
    return net, step


def check(part: str, backward: Callable[[torch.Tensor], None] = plainly) -> None:
    """Losses and gradients of some steps are eager's, or the error is."""
    results = []
    for compile in (in_eager, by_gradc):
        net, run = made(part, compile, backward)
        seen: list[Any] = []
        for number in range(4):
            try:
                seen.append(run(torch.full((2, 3), 0.1 * number)))
            except (RuntimeError, TypeError) as error:
                seen.append(str(error))
        results.append([seen, [param.grad for param in net.parameters()]])
    assert same_bits(*results)


@pytest.mark.parametrize("part", PARTS)
def test_straight_into_the_engine(part: str) -> None:
    _, step = settled(part)
    assert torchs_calls(lambda: step(torch.ones(2, 3))) == 0
    check(part)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "backward",
    [
        lambda loss: loss.backward(torch.tensor(2.0)),
        lambda loss: loss.backward(retain_graph=True),
        lambda loss: loss.backward(inputs=[loss]) if loss.is_leaf else loss.backward(gradient=None, retain_graph=None),
        lambda loss: (loss.backward(retain_graph=True), loss.backward()),
        lambda loss: (loss.backward(), loss.backward()),
        lambda loss: (loss * torch.ones(2)).backward(),
        lambda loss: loss.detach().backward(),
        lambda loss: loss.double().backward(),
        lambda loss: torch.autograd.backward(loss),
        lambda loss: torch.autograd.backward([loss, loss]),
        lambda loss: torch.autograd.backward(loss, grad_variables=torch.tensor(2.0)),
        lambda loss: torch.autograd.backward(loss, create_graph=True),
        lambda loss: torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss)),
        lambda loss: torch.autograd.backward(loss, grad_tensors=False),
        lambda loss: torch.autograd.backward(loss, create_graph=None),
        lambda loss: torch.autograd.backward(loss, inputs=[]),
        lambda loss: torch.autograd.backward(loss, inputs=0),
        lambda loss: (loss.retain_grad(), loss.backward(), loss.grad.clone()),
    ],
)
@pytest.mark.filterwarnings("ignore:`grad_variables`", "ignore:Using backward")
def test_as_in_eager(part: str, backward: Callable[[torch.Tensor], None]) -> None:
    check(part, backward)


def engines_passes(run: Callable[[], Any]) -> int:
    """How many passes torch's engine begins: it numbers them."""

    def number() -> int:
        x = torch.ones(1, requires_grad=True)
        x.register_hook(lambda grad: numbers.append(torch._C._current_graph_task_id()))
        x.sum().backward()
        return numbers.pop()

    numbers: list[int] = []
    before = number()
    run()
    return number() - before - 1


@pytest.mark.parametrize("part", ["step", "loss"])
def test_one_segment_needs_no_engine(part: str) -> None:
    net, step = settled(part)
    assert engines_passes(lambda: step(torch.ones(2, 3))) == 0
    net[0].weight.register_post_accumulate_grad_hook(lambda param: None)
    assert engines_passes(lambda: step(torch.ones(2, 3))) == 1


class Tied(nn.Module):
    """A weight that is used twice, one that is frozen, and one that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.frozen, self.unused = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.frozen(self.layer(x)).tanh()).square().mean()


@pytest.mark.parametrize("clears", [True, False])
@pytest.mark.parametrize("scale", [1.0, float("nan")])
def test_gradients_of_a_pass_without_the_engine(clears: bool, scale: float) -> None:
    results = []
    for compile in (lambda step: step, lambda step: gradc.compile(step, options=OPTIONS)):
        net = Tied()

        def step(x: torch.Tensor) -> None:
            if clears:
                net.zero_grad()
            (net(x) * scale).backward()

        run, firsts = compile(step), []
        for number in range(5):
            run(torch.full((2, 3), 0.1 * number))
            firsts.append(net.layer.weight.grad)
        assert clears or all(grad is firsts[0] for grad in firsts)
        results.append([[param.grad for param in net.parameters()], [grad.stride() for grad in firsts if grad is not None]])
    assert same_bits(*results)
    assert engines_passes(lambda: run(torch.ones(2, 3))) == 0


def test_gradients_are_the_leafs_own() -> None:
    """Nobody else holds them, so that the next ones are added in place, and dropping one frees it."""
    net, step = settled()
    step(torch.ones(2, 3))
    before = {id(param): param.grad.untyped_storage().data_ptr() for param in net.parameters() if param.grad is not None}
    for param in net.parameters():
        assert param.grad is not None and torch._C._storage_Use_Count(param.grad.untyped_storage()._cdata) <= 2
        assert param.grad.grad_fn is None and not param.grad.requires_grad
    assert len(before) == 4


@torch.library.custom_op("gradc_run_segments::note_pass", mutates_args=())
def note_pass(grad: torch.Tensor) -> torch.Tensor:
    passes_noted.append(torch._C._current_graph_task_id())
    return grad.clone()


passes_noted: list[int] = []
note_pass.register_fake(torch.empty_like)
note_pass.register_autograd(lambda ctx, grad: note_pass(grad))


def test_python_in_a_pass_finds_that_pass() -> None:
    weight = torch.ones(3, requires_grad=True)

    def step(x: torch.Tensor) -> None:
        note_pass(x * weight).sum().backward()

    run = gradc.compile(step, options=OPTIONS)
    for _ in range(4):
        passes_noted.clear()
        run(torch.ones(3))
        assert passes_noted[-2] == -1 and passes_noted[-1] >= 0  # the first call traces it, too


def test_a_hook_on_the_loss_is_called() -> None:
    seen: list[torch.Tensor] = []

    def backward(loss: torch.Tensor) -> None:
        torch._dynamo.graph_break()
        loss.register_hook(seen.append)
        loss.backward()

    _, step = settled("step", backward)
    seen.clear()
    step(torch.ones(2, 3))
    assert len(seen) == 1


@contextlib.contextmanager
def logged() -> Iterator[None]:
    log = logging.getLogger("torch.autograd.graph")
    before = log.level
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.setLevel(before)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("surroundings", [logged, torch.autograd.set_detect_anomaly, torch.profiler.profile])
def test_torchs_way_where_somebody_looks(part: str, surroundings: Any) -> None:
    _, step = settled(part)
    with surroundings(True) if surroundings is torch.autograd.set_detect_anomaly else surroundings():
        assert torchs_calls(lambda: step(torch.ones(2, 3))) == 1


@pytest.mark.parametrize("is_first", [True, False])
def test_beside_another_compiler(is_first: bool) -> None:
    """Dynamo leaves torch's own functions to Python for good, under every compiler, as soon as one has come to them."""
    _, compiled = made("step", lambda step: torch.compile(step, backend="eager"), plainly)
    for _ in range(3 * is_first):
        compiled(torch.ones(2, 3))
    _, step = settled()
    for _ in range(3):
        compiled(torch.ones(2, 3))
    assert torchs_calls(lambda: step(torch.ones(2, 3))) == 0
    assert torchs_calls(lambda: compiled(torch.ones(2, 3))) == 1


@pytest.mark.parametrize("part", PARTS)
def test_a_function_mode_sees_the_call(part: str) -> None:
    seen = list[Any]()

    class Watching(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    _, step = settled(part)
    with Watching():
        step(torch.ones(2, 3))
    assert torch.Tensor.backward in seen


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", ["backward", "_engine_run_backward"])
def test_torchs_way_where_somebody_has_put_his_own(part: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, step = settled(part)
    own, seen = getattr(torch.autograd, name), list[int]()

    def backward(*args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return own(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, name, backward)
    step(torch.ones(2, 3))
    assert seen == [1] and net[0].weight.grad is not None


@pytest.mark.parametrize("part", PARTS)
def test_in_a_hook_of_another_pass(part: str) -> None:
    """A pass inside of a pass is torch's: edges that segments hide have to be back."""
    net, step = settled(part)
    seen = list[Any]()
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(lambda grad: seen.append(torch.enable_grad()(step)(torch.ones(2, 3))))
    loss = weight.sum()
    assert torchs_calls(loss.backward) == 2
    assert len(seen) == 1 and net[0].weight.grad is not None


@pytest.mark.parametrize("part", PARTS)
def test_hooks_run(part: str) -> None:
    net, step = settled(part)
    seen = list[torch.Tensor]()
    net[0].weight.register_hook(seen.append)
    step(torch.ones(2, 3))
    assert len(seen) == 1 and same_bits(seen[0], net[0].weight.grad)


@pytest.mark.parametrize("part", PARTS)
def test_an_error_of_a_hook(part: str) -> None:
    net, step = settled(part)

    def refuse(grad: torch.Tensor) -> None:
        raise ValueError("of a hook")

    handle = net[0].weight.register_hook(refuse)
    with pytest.raises(ValueError, match="of a hook"):
        step(torch.ones(2, 3))
    handle.remove()
    step(torch.ones(2, 3))
    assert net[0].weight.grad is not None


FORKED = """
import inspect, os, sys, torch, gradc
weight = torch.ones(3, requires_grad=True)
options = {"compare_with_eager": False, "compile_seconds": None}
if sys.argv[2] == "net":
    net = gradc.compile(torch.sin, options=options)
    def compiled():
        net(weight).sum().backward()
else:
    @gradc.compile(options=options)
    def compiled():
        weight.sin().sum().backward()
for _ in range(int(sys.argv[1])):
    compiled()
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
compiled(), compiled()
calls, code = [], inspect.unwrap(torch.autograd.backward).__code__
sys.setprofile(lambda frame, event, arg: calls.append(event) if event == "call" and frame.f_code is code else None)
compiled()
sys.setprofile(None)
os._exit(0 if len(calls) == 1 else 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("part", ["step", "net"])
@pytest.mark.parametrize("calls_before", [0, 3])
def test_a_process_that_was_forked_off(part: str, calls_before: int) -> None:
    """Its engine is made anew by torch's Python. In a process of its own: the engine's threads do not survive a fork."""
    assert subprocess.run([sys.executable, "-c", FORKED, str(calls_before), part]).returncode == 0


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def many_ops(loss: torch.Tensor) -> torch.Tensor:
    for _ in range(40):
        loss = loss.sin()
    return loss


@pytest.mark.parametrize("between", [Same.apply, many_ops, lambda loss: torch.nn.Parameter(loss.detach())])
def test_torchs_way_from_other_graphs(between: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A Function in Python may ask for torch's context; a long graph takes longer to look through than torch's Python."""
    _, step = settled("net", lambda loss: between(loss).backward())
    assert torchs_calls(lambda: step(torch.ones(2, 3))) == 1
    check("net", lambda loss: between(loss).backward())


def test_torchs_way_without_segments() -> None:
    settled()
    _, step = made("net", in_eager, plainly)
    assert torchs_calls(lambda: step(torch.ones(2, 3))) == 1


@pytest.mark.parametrize("part", PARTS)
def test_what_is_captured_is_captured(part: str) -> None:
    counted = gradc.counters["compiled_autograd"]
    _, step = settled(part)
    with gradc.compiled_autograd.enable():
        step(torch.ones(2, 3))
        assert sum(counted.values()) == 1
        with gradc.compiled_autograd.disable():
            step(torch.ones(2, 3))
    assert sum(counted.values()) == 1
    with gradc.config.patch(compiled_autograd=True):
        step(torch.ones(2, 3))
    assert sum(counted.values()) == 2


def test_a_function_that_was_there_before_is_called() -> None:
    calls = list[Any]()
    torchs = inspect.unwrap(torch.autograd.backward)

    def theirs(*args: Any, **kwargs: Any) -> None:
        calls.append((len(args), sorted(kwargs)))
        torchs(*args, **kwargs)

    gradc.patches().undo()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.autograd, "backward", theirs)
        _, step = settled("net")
        calls.clear()
        step(torch.ones(2, 3))
        assert calls == [(4, ["inputs"])]
        gradc.patches().undo()
    assert torch.autograd.backward is torchs
    _, step = settled("net")
    assert torchs_calls(lambda: step(torch.ones(2, 3))) == 0


def test_threads() -> None:
    """Each with a network of its own: gradients are eager's."""
    nets = [made("net", by_gradc, plainly) for _ in range(4)]

    def train(number: int) -> None:
        for _ in range(20):
            nets[number][1](torch.full((2, 3), 0.1 * number))

    threads = [threading.Thread(target=train, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (trained, _) in enumerate(nets):
        net, step = made("net", in_eager, plainly)
        step(torch.full((2, 3), 0.1 * number))
        assert same_bits([param.grad for param in trained.parameters()], [param.grad for param in net.parameters()])
