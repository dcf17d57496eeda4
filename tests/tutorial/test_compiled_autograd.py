"""The code blocks of the tutorial on Compiled Autograd, in its order, with gradc's names and golden logs."""

from __future__ import annotations

import logging
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import gradc
from gradc import compiled_autograd
from gradc.bits import same_bits
from gradc.journal import logger
from tests.tutorial.golden import check_golden

EXAMPLE = pathlib.Path(__file__).parent / "example.py"
REASONS = ("Cache miss", "  closest", "  at ", "  user line")


class Lines(logging.Handler):
    """What was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"

    def starting_with(self, start: str | tuple[str, ...]) -> str:
        return "".join(line + "\n" for line in self.text.splitlines() if line.startswith(start))


@pytest.fixture
def verbose() -> Iterator[Lines]:
    gradc.reset()
    target, lines = logger("compiled_autograd_verbose"), Lines()
    level = target.level
    target.setLevel(logging.DEBUG)
    target.addHandler(lines)
    yield lines
    target.removeHandler(lines)
    target.setLevel(level)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


# ---- Basic usage; Inspecting the compiled autograd logs


def test_basic_usage(verbose: Lines) -> None:
    model, x = Model(), torch.randn(10)

    @gradc.compile
    def train(model: Model, x: torch.Tensor) -> None:
        loss = model(x).sum()
        loss.backward()

    with gradc.config.patch(compiled_autograd=True):
        train(model, x)
    assert model.linear.bias.grad is not None and same_bits(model.linear.bias.grad, torch.ones(10))
    assert model.linear.weight.grad is not None and same_bits(model.linear.weight.grad, x.expand(10, 10))
    check_golden("basic_usage", verbose.text)


def test_basic_usage_after_an_eager_forward(verbose: Lines) -> None:
    model, x = Model(), torch.randn(10)
    with torch.autograd.detect_anomaly(check_nan=False):  # keeps the user's lines
        loss = model(x).sum()
    with gradc.config.patch(compiled_autograd=True):
        loss.backward()
    check_golden("eager_forward", verbose.text.replace("UnsafeViewBackward0", "ViewBackward0"))  # as it is since torch 2.15


@pytest.mark.parametrize("artifact", ["compiled_autograd", "compiled_autograd_verbose"])
def test_logs_by_environment_variable(artifact: str) -> None:
    root = EXAMPLE.parent.parent.parent
    environment = {**os.environ, "GRADC_LOGS": artifact, "GRADC_COMPILED_AUTOGRAD": "1", "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, str(EXAMPLE)], env=environment, capture_output=True, text=True, check=True)
    check_golden(f"environment_{artifact}", done.stderr)


def test_the_graph_can_be_called(verbose: Lines) -> None:
    x = torch.randn(3, requires_grad=True)
    with compiled_autograd.enable():
        (grad,) = torch.autograd.grad(x.exp().sum(), x)
    graph = compiled_autograd.last_graph()
    assert graph is not None
    with torch.no_grad():
        (again,) = graph([torch.ones(()), x.exp()], [], [], [])
    assert same_bits(grad, again)


def test_the_graph_of_a_compiled_forward_can_be_called(verbose: Lines) -> None:
    """What the region saved follows the walked tensors: here the input of the layer and the result of tanh."""
    model, x = Model(), torch.randn(4, 10)
    loss = gradc.compile(lambda x: model(x).tanh().sum())(x)
    with compiled_autograd.enable():
        loss.backward()
    graph = compiled_autograd.last_graph()
    assert graph is not None
    saved = {"aot0_tanh": model(x).tanh().detach(), "aot0_x": x}
    names = [node.name for node in graph.graph.nodes if node.name in saved]
    fresh = Model()
    with torch.no_grad():
        graph([torch.ones(()), fresh.linear.bias, fresh.linear.weight, *(saved[name] for name in names)], [], [], [])
    assert len(names) == 2
    for ours, theirs in zip(fresh.parameters(), model.parameters()):
        assert ours.grad is not None and theirs.grad is not None and same_bits(ours.grad, theirs.grad)


# ---- Compiling the forward and backward pass using different flags


def test_backward_as_a_full_graph(verbose: Lines) -> None:
    def train(model: torch.nn.Module, x: torch.Tensor) -> None:
        model = gradc.compile(model)
        loss = model(x).sum()
        with gradc.config.patch(compiled_autograd=True):
            gradc.compile(lambda: loss.backward(), fullgraph=True)()

    model = Model()
    train(model, torch.randn(10))
    assert model.linear.bias.grad is not None
    assert gradc.counters["compiled_autograd"]["captures"] == 1 and not gradc.counters["fallbacks"]


def test_a_full_graph_breaks_only_at_backward() -> None:
    x = torch.randn(3, requires_grad=True)

    def step() -> None:
        loss = x.sin().sum()
        torch._dynamo.graph_break()
        (loss * 2).backward()

    with pytest.raises(gradc.FallbackError, match="graph break"):
        gradc.compile(step, fullgraph=True)()


def test_context_manager(verbose: Lines) -> None:
    def train(model: torch.nn.Module, x: torch.Tensor) -> None:
        model = gradc.compile(model)
        loss = model(x).sum()
        with compiled_autograd.enable(gradc.compile(fullgraph=True)):
            loss.backward()

    model = Model()
    train(model, torch.randn(10))
    assert model.linear.bias.grad is not None
    assert gradc.counters["compiled_autograd"]["captures"] == 1 and not gradc.counters["fallbacks"]


def test_own_compiler_for_backward(verbose: Lines) -> None:
    model, x, graphs = gradc.compile(Model()), torch.randn(10), list[torch.fx.GraphModule]()

    def compiler(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    loss = model(x).sum()
    with compiled_autograd.enable(compiler):
        loss.backward()
    assert len(graphs) == 1


# ---- Compiled Autograd addresses certain limitations of AOTAutograd


@pytest.mark.parametrize("backend", ["eager", "replay"])
def test_one_graph_though_the_forward_breaks(backend: str, verbose: Lines) -> None:
    @gradc.compile(backend=backend)
    def fn(x: torch.Tensor) -> torch.Tensor:
        # 1st graph
        temp = x + 10
        torch._dynamo.graph_break()
        # 2nd graph
        temp = temp + 10
        torch._dynamo.graph_break()
        # 3rd graph
        return temp.sum()

    x = torch.randn(10, 10, requires_grad=True)
    gradc.counters.clear()
    loss = fn(x)
    loss.backward(retain_graph=True)
    assert gradc.counters["stats"]["unique_graphs"] == 3
    gradc.counters.clear()
    with compiled_autograd.enable(gradc.compile(backend=backend)):
        loss.backward()
    assert gradc.counters["stats"]["unique_graphs"] == 1
    assert x.grad is not None and same_bits(x.grad, torch.full((10, 10), 2.0))
    check_golden(f"forward_breaks_{backend}", verbose.text)


def test_backward_hooks_are_captured(verbose: Lines) -> None:
    @gradc.compile
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sum()

    x = torch.randn(10, 10, requires_grad=True)
    x.register_hook(lambda grad: grad + 10)
    loss = fn(x)
    with compiled_autograd.enable(gradc.compile()):
        loss.backward()
    assert x.grad is not None and same_bits(x.grad, torch.full((10, 10), 11.0))
    check_golden("hooks", verbose.text)


# ---- Common recompilation reasons for Compiled Autograd


def test_recompiles_as_the_structure_changes(verbose: Lines) -> None:
    x = torch.randn(10, requires_grad=True)
    with gradc.config.patch(compiled_autograd=True):
        for op in [torch.add, torch.sub, torch.mul, torch.div]:
            loss = op(x, x).sum()
            gradc.compile(lambda loss=loss: loss.backward(), backend="eager")()
    misses = verbose.starting_with("Cache miss").splitlines()
    assert [line.split(" with key size")[0].removeprefix("Cache miss due to new autograd node: ") for line in misses] == [
        "torch::autograd::GraphRoot (NodeCall 0)",
        "SubBackward0 (NodeCall 2)",
        "MulBackward0 (NodeCall 2)",
        "DivBackward0 (NodeCall 2)",
    ]
    check_golden("structure_changes", verbose.starting_with(REASONS))


def test_recompiles_as_shapes_change(verbose: Lines) -> None:
    with gradc.config.patch(compiled_autograd=True):
        for size in [10, 100, 10, 50]:
            x = torch.randn(size, size, requires_grad=True)
            loss = x.sum()
            gradc.compile(lambda loss=loss: loss.backward(), backend="eager")()
    assert gradc.counters["compiled_autograd"] == {"captures": 2, "hits": 2, "made dynamic": 1}
    check_golden("shapes_change", verbose.starting_with(REASONS))
