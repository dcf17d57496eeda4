"""Which nodes of the live graph a verified call made, and where autocast's copies of weights stand among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradc.shadow.arrivals import Edge
from gradc.shadow.copies import is_of_copies
from gradc.torch_private.autograd import sequence_nr
from gradc.torch_private.modes import is_any_autocast_enabled

_CAST = "ToCopyBackward0"
_LEAF = "torch::autograd::AccumulateGrad"


@dataclasses.dataclass(frozen=True)
class Output:
    """A tensor that came out of the call with a history: its edge in the live graph, and eager's.

    ``is_entered``: whether gradients come in there; asked as they come.
    """

    edge: Edge
    eager: Tensor
    is_entered: Callable[[], bool] = lambda: True


@dataclasses.dataclass(frozen=True)
class Input:
    """What a gradient is for: the edge that it leaves the call by, in the live graph and in eager's."""

    name: str
    edge: Edge
    eager: Edge


def nodes_between(roots: Iterable[Any], first_number: int, is_end: Callable[[Edge], bool] = lambda _: False) -> list[Any]:
    """The nodes that this thread made from ``first_number`` on, up to the edges that are an end, and leaves.

    Every thread numbers its nodes by itself: what others made may have any number, and must lie behind an end.
    """
    found: dict[Any, None] = {}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found and sequence_nr(node) >= first_number:
            found[node] = None
            waiting += [edge[0] for edge in node.next_functions if not is_end(edge)]
    return list(found)


def is_of_a_leaf(edge: Edge) -> bool:
    return bool(edge[0].name() == _LEAF)


def has_python_nodes(roots: Iterable[Any]) -> bool:
    """Whether a formula in Python stands among the nodes: it may have kept what it reads by itself."""
    nodes = nodes_between(roots, 0)
    return any(isinstance(node, torch.autograd.function.BackwardCFunction) and not is_of_copies(node) for node in nodes)


def lead_to_one_another(edges: Iterable[Edge]) -> bool:
    """Whether what comes in was computed from what comes in beside it: a gradient of the one flows on into the other."""
    known = set(edges)
    seen: set[Any] = set()
    waiting = [node for node, _ in known]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if any(edge in known for edge in node.next_functions):
                return True
            waiting += [following for following, _ in node.next_functions]
    return False


def cut_at_casts(outputs: Sequence[Output], inputs: Sequence[Input], inside: list[Any]) -> list[Input]:
    """Autocast's copies of weights serve other calls, too: what arrives at a copy is compared, not what leaves it.

    A weight that the user casts besides is left out, and one whose copy is from before the call: eager has made another.
    """
    if not is_any_autocast_enabled():
        return list(inputs)
    live = _casts(inside)
    earlier = _casts({following for node in inside for following, _ in node.next_functions} - {None, *inside})
    eager = _casts(nodes_between([output.eager.grad_fn for output in outputs], 0))
    return [
        dataclasses.replace(given, edge=(live[given.edge[0]][0], 0), eager=(eager[given.eager[0]][0], 0))
        if given.edge[0] in live and given.eager[0] in eager
        else given
        for given in inputs
        if given.edge[0] not in earlier
        and len(eager.get(given.eager[0], [])) <= 1  # else one is the user's own, and nobody can tell which
    ]


def _casts(nodes: Iterable[Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for node in nodes:
        if node.name() == _CAST:
            found.setdefault(node.next_functions[0][0], []).append(node)
    return found


def by_node(edges: Iterable[tuple[Edge, int]]) -> dict[Any, list[tuple[int, int]]]:
    """For each node the places where edges come in, with the number of each."""
    found: dict[Any, list[tuple[int, int]]] = {}
    for (node, place), number in edges:
        found.setdefault(node, []).append((place, number))
    return found
