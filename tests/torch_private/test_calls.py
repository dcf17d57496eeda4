"""Calls of native regions by Dynamo's bytecode."""

from __future__ import annotations

import pytest

from tests.forked import python

# Python specialises a call after eight times or so.
_PROGRAM = """
import torch, gradc
from torch import nn
from gradc.bits import same_bits
weights = [nn.Parameter(torch.tensor([0.1 * number])) for number in range({number})]
def add(x):
    for weight in weights:
        x = x + weight
    return x
def train(model):
    for _ in range(20):
        model(torch.ones(1)).square().sum().backward()
    return [weight.grad.clone() for weight in weights]
eager = train(add)
for weight in weights:
    weight.grad = None
print(same_bits(eager, train(gradc.compile(add))), dict(gradc.counters["fallbacks"]))
"""


@pytest.mark.parametrize("number", [254, 300])  # and one input
def test_a_graph_of_more_inputs_than_an_instruction_counts_does_not_crash_python(number: int) -> None:
    """Python 3.11 crashed at the ninth step of any model of more than 255 parameters and inputs: ResNet-50."""
    run = python("-c", _PROGRAM.format(number=number))
    assert (run.returncode, run.stdout) == (0, "True {}\n"), run.stderr
