"""Who else holds a gradient on its way to a leaf: random graphs whose nodes and hooks hand on, keep and change gradients."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compilers import find
from tests.fuzz.toolbox import Sum, changing
from tests.oracle import compare

NUM_GRAPHS = {"captured": 1500, "gradc_captured": 60, "gradc": 60}
SHAPES = [(2, 3), (1, 3), (3, 1), (1, 1), (3,)]


class HandedOn(Sum):
    """Its node sends all inputs what it was given."""

    @staticmethod
    def backward(ctx, grad):
        return (grad,) * len(ctx.shapes)


class Views(Sum):
    """Its node sends all inputs views of one tensor."""

    @staticmethod
    def backward(ctx, grad):
        grad = grad * 2
        return tuple(grad.view_as(grad) for _ in ctx.shapes)


NODES: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "add": (2, lambda x, y: x + y),
    "sub": (2, lambda x, y: x - y),
    "mul": (2, lambda x, y: x * y),
    "mul by one": (1, lambda x: x * 1),
    "exp": (1, lambda x: (x * 0.1).exp()),
    "used twice": (1, lambda x: x * 2 + x),
    "other order in memory": (1, lambda x: (x.mT * 1).mT if x.dim() == 2 else x.flip(0)),
    "same": (3, lambda *inputs: Sum.apply(*inputs)),
    "handed on": (3, lambda *inputs: HandedOn.apply(*inputs)),
    "views": (3, lambda *inputs: Views.apply(*inputs)),
}


def laid_out_anew(grad: Tensor) -> Tensor:
    return grad.mT.contiguous().mT if grad.dim() == 2 else grad.clone()


HOOKS: dict[str, Callable[[list[Any], Tensor], Any]] = {
    "none": lambda events, t: None,
    "changes": lambda events, t: t.register_hook(lambda grad: grad * 2),
    "returns it": lambda events, t: t.register_hook(lambda grad: grad),
    "returns a view": lambda events, t: t.register_hook(lambda grad: grad.view_as(grad)),
    "lays out anew": lambda events, t: t.register_hook(laid_out_anew),
    "keeps": lambda events, t: t.register_hook(events.append),
    "retains": lambda events, t: t.requires_grad and t.retain_grad(),
}


def takes_away(events: list[Any], p: Tensor) -> None:
    events.append(p.grad)
    p.grad = None


def replaces(events: list[Any], p: Tensor) -> None:
    p.grad = p.grad.detach()


ON_LEAVES: dict[str, Callable[[list[Any], Tensor], None]] = {
    "changes in place": lambda events, p: changing(events)(p),
    "takes away": takes_away,
    "replaces": replaces,
    "keeps": lambda events, p: events.append(p.grad),
}


@dataclasses.dataclass(frozen=True)
class Graph:
    """``nodes``: name, operands and hook of each; the operands count leaves first. ``leaves``: .grad before, hook, layout."""

    shape: tuple[int, ...]
    nodes: tuple[tuple[str, tuple[int, ...], str], ...]
    leaves: tuple[tuple[str, str, str], ...]
    ends: tuple[int, ...]
    backward: str
    num_steps: int

    def values(self, *leaves: Tensor) -> list[Tensor]:
        values = list(leaves)
        for name, operands, _ in self.nodes:
            values.append(NODES[name][1](*(values[operand] for operand in operands)))
        return values

    def make_leaves(self, events: list[Any]) -> list[Tensor]:
        shared = torch.zeros(self.shape)
        before = {"none": lambda: None, "ones": lambda: torch.ones(self.shape), "shared": lambda: shared}
        leaves = []
        for grad, hook, layout in self.leaves:
            p = torch.randn(self.shape)
            p = (laid_out_anew(p) if layout == "odd" else p).requires_grad_()
            p.grad = laid_out_anew(torch.ones(self.shape)) if grad == "odd" else before[grad]()
            if hook in ON_LEAVES:
                p.register_post_accumulate_grad_hook(lambda p, hook=hook: ON_LEAVES[hook](events, p))
            elif hook == "tensor hook keeps":
                p.register_hook(events.append)
            leaves.append(p)
        return leaves

    def step(self, compile: Any) -> Any:
        events: list[Any] = []
        leaves = self.make_leaves(events)
        function = compile(self.values)
        for _ in range(self.num_steps):
            values = function(*leaves)
            made = values[len(leaves) :]
            for value, (_, _, hook) in zip(made, self.nodes, strict=True):
                HOOKS[hook](events, value)
            loss = sum(values[end].sin().sum() for end in self.ends)
            if self.backward == "grad":
                events += torch.autograd.grad(loss, leaves, allow_unused=True)
            elif self.backward == "of some":
                loss.backward(inputs=leaves[:1])
            else:
                loss.backward(retain_graph=self.backward == "twice")
                if self.backward == "twice":
                    loss.backward()
            retained = [value.grad for value, (_, _, hook) in zip(made, self.nodes, strict=True) if hook == "retains"]
        # A node that hands on what it was given does so in a new handle, the time when it is captured.
        return [p.grad for p in leaves], [None if event is None else event.detach() for event in events], retained


def graph(seed: int) -> Graph:
    rng = random.Random(seed)
    num_leaves = rng.randint(1, 4)
    nodes: list[tuple[str, tuple[int, ...], str]] = []
    for count in range(num_leaves, num_leaves + rng.randint(1, 6)):
        name = rng.choice(list(NODES))
        operands = tuple(rng.randrange(count) for _ in range(NODES[name][0]))
        nodes.append((name, operands, rng.choice(["none", *HOOKS])))
    hooks = ["none", "none", "tensor hook keeps", *ON_LEAVES]
    leaves = [
        (rng.choice(["none", "none", "ones", "odd", "shared"]), rng.choice(hooks), rng.choice(["usual", "usual", "odd"]))
        for _ in range(num_leaves)
    ]
    last = num_leaves + len(nodes) - 1
    ends = {last, rng.randint(num_leaves, last)}
    how = rng.choice(["once", "once", "once", "twice", "grad", "of some"])
    return Graph(rng.choice(SHAPES), tuple(nodes), tuple(leaves), tuple(sorted(ends)), how, rng.randint(1, 3))


@pytest.mark.parametrize("name", NUM_GRAPHS)
def test_gradients_and_who_shares_them(name: str, of_the_day: Any) -> None:
    compiler = find(name)
    for seed in of_the_day(range(NUM_GRAPHS[name]), 4):
        differences = compare(graph(seed).step, compiler=compiler).differences
        assert not differences, f"{seed}: {graph(seed)}\n" + "\n".join(differences)
