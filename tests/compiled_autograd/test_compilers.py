"""What is given to ``enable`` runs the backward: gradc's backends, torch.compile, and any function of a GraphModule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from gradc import compiled_autograd
from gradc.bits import same_bits

pytestmark = pytest.mark.usefixtures("nothing_captured")


def gradient(context: Any, seed: int = 0, hook: Any = None, rows: int = 4) -> list[torch.Tensor | None]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    hidden = model[0](torch.randn(rows, 8))
    if hook is not None:
        hidden.register_hook(hook)
    loss = model[2](model[1](hidden)).square().sum()
    with context:
        loss.backward()
    return [p.grad for p in model.parameters()]


def doubling(graph: torch.fx.GraphModule) -> Callable[..., Any]:
    """A compiler whose work can be seen: it doubles what tanh_backward returns."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh_backward.default):
        with graph.graph.inserting_after(node):
            double = graph.graph.call_function(torch.ops.aten.mul.Scalar, (node, 2.0))
        node.replace_all_uses_with(double)
        double.args = (node, 2.0)
    graph.recompile()
    return graph


def test_the_compiler_s_result_runs_the_backward() -> None:
    expected = gradient(compiled_autograd.disable())
    for _ in range(2):  # captured, then replayed
        found = gradient(compiled_autograd.enable(doubling))
    assert same_bits(found[2], expected[2])
    assert same_bits(found[0], 2 * expected[0])
    assert gradc.counters["compiled_autograd"]["hits"] == 1


def test_the_compiler_is_called_once_for_each_graph() -> None:
    graphs: list[torch.fx.GraphModule] = []
    compiler = lambda graph: graphs.append(graph) or graph
    for seed in range(3):
        gradient(compiled_autograd.enable(compiler), seed)
    assert len(graphs) == 1
    assert [node.name for node in graphs[0].graph.find_nodes(op="placeholder")] == ["inputs", "sizes", "scalars", "hooks"]
    gradient(compiled_autograd.enable(compiler), rows=5)
    assert len(graphs) == 2


def test_a_hook_cuts_the_graph_and_runs_each_time() -> None:
    graphs: list[torch.fx.GraphModule] = []
    compiler = lambda graph: graphs.append(graph) or graph
    for factor in (2.0, 3.0, 4.0):
        hook = lambda grad: grad * factor
        expected = gradient(compiled_autograd.disable(), hook=hook)
        assert same_bits(expected, gradient(compiled_autograd.enable(compiler), hook=hook))
    assert len(graphs) == 2
    assert gradc.counters["compiled_autograd"]["captures"] == 1


@pytest.mark.parametrize("backend", ["eager", "replay"])
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_backends_are_bitwise(backend: str, dynamic: bool | None) -> None:
    for seed, rows in enumerate((4, 4, 7, 3, 5)):
        setting = gradc.compile(backend=backend, dynamic=dynamic)
        expected = gradient(compiled_autograd.disable(), seed, rows=rows)
        assert same_bits(expected, gradient(compiled_autograd.enable(setting), seed, rows=rows))
    assert gradc.counters["compiled_autograd"]["captures"] == {None: 2, True: 1, False: 4}[dynamic]


def test_a_registered_backend_is_used() -> None:
    from gradc.backends import registry

    programs = []

    def seen(program: Any) -> Any:
        programs.append(program)
        return registry.lookup_backend("eager")(program)

    gradc.register_backend("seen in test", seen)
    try:
        expected = gradient(compiled_autograd.disable())
        assert same_bits(expected, gradient(compiled_autograd.enable(gradc.compile(backend="seen in test"))))
    finally:
        del registry._backends["seen in test"]
    assert len(programs) == 1


@pytest.mark.parametrize("compiler", [gradc.compile(backend="inductor"), torch.compile, torch.compile(backend="aot_eager")])
def test_inductor_and_torch_compile(compiler: Any) -> None:
    for seed in range(2):
        expected = gradient(compiled_autograd.disable(), seed)
        found = gradient(compiled_autograd.enable(compiler), seed)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(expected, found, strict=True))
    assert gradc.counters["compiled_autograd"]["hits"] == 1
    assert not gradc.counters["fallbacks"]


def test_settings_do_not_share_graphs() -> None:
    expected = gradient(compiled_autograd.disable())
    gradient(compiled_autograd.enable(doubling))
    assert same_bits(expected, gradient(compiled_autograd.enable()))


def test_fullgraph_raises_where_torch_s_engine_would_run() -> None:
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(gradc.FallbackError, match="create_graph"), compiled_autograd.enable(gradc.compile(fullgraph=True)):
        torch.autograd.grad(x.exp().sum(), x, create_graph=True)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(gradc.ConfigError, match="GraphModule"):
        gradient(compiled_autograd.enable("inductor"))  # type: ignore[arg-type]


class Doubled(torch.autograd.Function):
    """Its node is eager's, between two segments."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


@pytest.mark.parametrize("has_other_nodes", [True, False])
def test_backward_inside_a_compiled_function_is_captured_where_it_meets_other_nodes_than_segments(
    has_other_nodes: bool,
) -> None:
    model = nn.Linear(4, 4)
    double = Doubled.apply if has_other_nodes else lambda x: x * 2

    @gradc.compile
    def train(x: torch.Tensor) -> None:
        double(model(x)).square().sum().backward()

    x = torch.randn(2, 4)
    (model(x) * 2).square().sum().backward()
    expected = [p.grad for p in model.parameters()]
    for _ in range(3):
        model.zero_grad()
        train(x)
        assert same_bits(expected, [p.grad for p in model.parameters()])
    assert gradc.counters["compiled_autograd"]["captures"] == has_other_nodes
    assert gradc.counters["compiled_autograd"]["hits"] == 2 * has_other_nodes
    model.zero_grad()
    with compiled_autograd.disable():
        train(x)
    assert gradc.counters["compiled_autograd"]["hits"] == 2 * has_other_nodes
