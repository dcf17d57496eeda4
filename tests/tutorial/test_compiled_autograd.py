"""The code blocks of the tutorial on Compiled Autograd, with gradc's names."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest
import torch

import gradc
from gradc.engine import compiled_autograd
from gradc.report.record import logger


class Lines(logging.Handler):
    """What was logged, with key sizes and addresses masked."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = re.sub(r"key size \d+", "key size N", record.getMessage())
        self.text += re.sub(r"sizes=\[[\d, ]+\]", "sizes=[N]", text) + "\n"


@pytest.fixture
def verbose() -> Iterator[Lines]:
    compiled_autograd.reset()
    gradc.counters.clear()
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


def test_basic_usage(verbose: Lines) -> None:
    model, x = Model(), torch.randn(10)
    loss = model(x).sum()
    with gradc.config.patch(compiled_autograd=True):
        loss.backward()
    assert model.linear.bias.grad is not None
    assert torch.equal(model.linear.bias.grad, torch.ones(10))
    text = verbose.text
    first = "Cache miss due to new autograd node: torch::autograd::GraphRoot (NodeCall 0) with key size N"
    assert text.startswith(first + ", previous key sizes=[]")
    assert "TRACED GRAPH\n===== Compiled autograd graph =====\n" in text
    assert "def forward(self, inputs, sizes, scalars, hooks):" in text
    assert "code: SumBackward0 (NodeCall 1)" in text
    assert 'expand: "f32[10][0]cpu" = torch.ops.aten.expand.default' in text
    assert "torch.ops.inductor.accumulate_grad_.default" in text


def test_different_flags_for_forward_and_backward(verbose: Lines) -> None:
    model, x, graphs = gradc.compile(Model()), torch.randn(10), list[torch.fx.GraphModule]()

    def compiler(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    loss = model(x).sum()
    with compiled_autograd.enable(compiler):
        loss.backward()
    assert len(graphs) == 1


def test_one_graph_though_the_forward_breaks(verbose: Lines) -> None:
    @gradc.compile
    def fn(x: torch.Tensor) -> torch.Tensor:
        temp = x + 10
        torch._dynamo.graph_break()
        temp = temp + 10
        torch._dynamo.graph_break()
        return temp.sum()

    x = torch.randn(10, 10, requires_grad=True)
    loss = fn(x)
    loss.backward(retain_graph=True)
    gradc.counters.clear()
    with compiled_autograd.enable(gradc.compile(backend="eager") if "eager" in gradc.list_backends() else None):
        loss.backward()
    assert gradc.counters["stats"]["unique_graphs"] == 1
    assert x.grad is not None and torch.equal(x.grad, torch.full((10, 10), 2.0))


def test_backward_hooks_are_captured(verbose: Lines) -> None:
    x = torch.randn(10, 10, requires_grad=True)
    x.register_hook(lambda grad: grad + 10)
    loss = x.sum()
    with compiled_autograd.enable():
        loss.backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full((10, 10), 11.0))
    pattern = r'call_hook: "f32\[10, 10\]\[0, 0\]cpu" = gradc_engine_graph_call_hook\(getitem_\d+, expand, '
    assert re.search(pattern + r"hook_type = 'tensor_pre_hook'\)", verbose.text), verbose.text


def test_recompiles_as_the_structure_changes(verbose: Lines) -> None:
    x = torch.randn(10, requires_grad=True)
    for op in [torch.add, torch.sub, torch.mul, torch.div]:
        with compiled_autograd.enable():
            op(x, x).sum().backward()
    misses = [line for line in verbose.text.splitlines() if line.startswith("Cache miss")]
    end = "with key size N, previous key sizes=[]"
    assert misses == [
        f"Cache miss due to new autograd node: {name} {end}"
        for name in (
            "torch::autograd::GraphRoot (NodeCall 0)",
            "SubBackward0 (NodeCall 2)",
            "MulBackward0 (NodeCall 2)",
            "DivBackward0 (NodeCall 2)",
        )
    ]


def test_recompiles_as_shapes_change(verbose: Lines) -> None:
    for size in [10, 100, 10, 50]:
        x = torch.randn(size, size, requires_grad=True)
        loss = x.sum()
        with compiled_autograd.enable():
            loss.backward()
    misses = [line for line in verbose.text.splitlines() if line.startswith("Cache miss")]
    assert len(misses) > 1 and all("changed shapes: marking size idx" in line for line in misses[1:])
    assert gradc.counters["compiled_autograd"]["captures"] == 2
    assert gradc.counters["compiled_autograd"]["hits"] == 2


def test_the_graph_can_be_called(verbose: Lines) -> None:
    x = torch.randn(3, requires_grad=True)
    with compiled_autograd.enable():
        (grad,) = torch.autograd.grad(x.exp().sum(), x)
    graph = compiled_autograd.last_graph()
    assert graph is not None
    with torch.no_grad():
        (again,) = graph([torch.ones(()), x.exp()], [], [], [])
    assert torch.equal(grad, again)
