"""The table of facts about autograd nodes names kinds that there are, and tells them apart from the user's own."""

import pytest
import torch

from gradc.tape import node_facts
from gradc.tape.node_facts import NodeFact

FACTS = [fact for fact in vars(node_facts).values() if isinstance(fact, NodeFact)]


def test_a_leaf_and_what_hides_a_node():
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    y[:2].mul_(2)
    assert y.grad_fn in node_facts.HIDES_NODE and y.grad_fn not in node_facts.LEAVES
    assert x.view_as(x).grad_fn.next_functions[0][0] in node_facts.LEAVES


def test_a_cast():
    assert torch.ones(3, requires_grad=True).bfloat16().grad_fn in node_facts.CASTS


@pytest.mark.parametrize("function", [lambda x: x.masked_select(x > 0), lambda x: torch.linalg.eig(x)[0]])
def test_what_asks_for_a_subclass_does_so_under_create_graph(function):
    node = function(torch.eye(3, requires_grad=True)).grad_fn
    assert node in node_facts.ASKS_FOR_SUBCLASS and node in node_facts.ASKS_UNDER_CREATE_GRAPH


class CopySlices(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_a_function_of_the_same_name_is_another_kind():
    node = CopySlices.apply(torch.ones(3, requires_grad=True)).grad_fn
    assert not any(node in fact for fact in FACTS)


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: ",".join(sorted(fact.kinds))[:40])
def test_each_fact_has_a_reason_and_is_of_kinds_that_torch_has(fact):
    """A kind that torch has renamed would be one of which nothing is known any more."""
    assert fact.why and fact.kinds
    assert fact.kinds - {"CppFunction"} <= set(dir(torch._C._functions))
