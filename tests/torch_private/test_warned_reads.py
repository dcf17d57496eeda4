"""The ``.grad`` of a tensor that is no leaf, of which torch warns: once a call, behind a graph break, too."""

import warnings

import torch

import gradc


def test_grad_of_a_non_leaf_read_behind_a_graph_break():
    def step(x):
        z = x * 2
        z.sum().backward()
        return z.grad

    def told(function):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(torch.ones(3, requires_grad=True))
        return [(str(each.message), each.category, each.filename, each.lineno) for each in caught]

    compiled = gradc.compile(step)
    with torch.compiler.config.patch(force_disable_caches=False):  # of which Dynamo warns once
        assert [told(compiled) for _ in range(3)] == [told(step)] * 3
