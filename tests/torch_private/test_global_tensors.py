"""Functions that find their model and tensors in globals are compiled, behind graph breaks, too."""

from __future__ import annotations

import torch
from torch import nn

import gradc
from gradc.bits import same_bits

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.linspace(-1, 1, 8).reshape(2, 4)
scale = torch.tensor(2.0)


def loss():
    return model(x).square().mean() * scale


def step():
    optimizer.zero_grad()
    value = loss()
    value.backward()
    optimizer.step()
    return value.detach()


def scaled():
    print(end="")
    return scale * 3


def trained(step):
    first = [param.detach().clone() for param in model.parameters()]
    values = [[step(), *(param.detach().clone() for param in model.parameters())] for _ in range(4)]
    with torch.no_grad():
        for param, own in zip(model.parameters(), first, strict=True):
            param.copy_(own)
    return values


def test_a_step_of_a_script_is_compiled():
    """Behind zero_grad nothing was compiled, and nothing counted."""
    gradc.reset()
    expected, compiled = trained(step), trained(gradc.compile(step))
    assert same_bits(expected, compiled)
    assert gradc.counters["stats"]["unique_graphs"] == 1


def left_to_python():
    locals()
    return tripled()


def tripled():
    return scale * 3


def test_what_python_calls_is_compiled_where_its_tensors_are_globals():
    """Dynamo found no tensor among the variables of ``tripled``: it ran eagerly, and nothing counted it."""
    gradc.reset()
    assert same_bits(gradc.compile(left_to_python)(), tripled())
    assert gradc.counters["stats"]["unique_graphs"] == 1


def test_a_global_tensor_that_is_another_at_the_next_call():
    global scale
    run = gradc.compile(scaled)
    before = scale
    try:
        for value in (1.0, torch.tensor(4.0), torch.tensor([1.0, 2.0]), nn.Parameter(torch.tensor(5.0)), 7):
            scale = value
            assert same_bits(run(), scaled())
    finally:
        scale = before


def test_another_compiler_leaves_such_a_function_as_before():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    gradc.compile(scaled)()
    assert same_bits(torch.compile(scaled, backend=backend)(), scaled()) and not graphs
