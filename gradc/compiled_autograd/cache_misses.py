"""What compiled autograd says in the logs ``compiled_autograd`` and ``compiled_autograd_verbose``.

miss: Walk -> None          why no recording fits: the closest earlier graph, and the first difference
captured: graph -> None     the captured graph, as code
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradc.ir.values import SHORT_DTYPE
from gradc.journal import is_heard, is_logged, log, show, tell
from gradc.walk.origins import HOW_TO_KNOW, line_of

if TYPE_CHECKING:
    from gradc._C import Walk

Sizes = tuple[int, ...]
_CAPACITY = 64
_OTHER_ORDER = "the same nodes share other memory, or run in another order"


@dataclasses.dataclass(frozen=True)
class Held:
    """A tensor that a node saved, as far as it matters."""

    dtype: torch.dtype
    shape: Sizes
    stride: Sizes

    def __str__(self) -> str:
        return f"{SHORT_DTYPE.get(self.dtype, self.dtype)}{list(self.shape)}{list(self.stride)}"


@dataclasses.dataclass(frozen=True)
class Seen:
    """One node of a graph that missed: its name and edges, the sizes and tensors it holds, and its part of the key."""

    name: str
    edges: tuple[int, ...] = ()
    sizes: Sizes = ()
    key: bytes = b""
    tensors: tuple[Held, ...] = ()
    is_opaque: bool = False
    is_leaf: bool = False

    @property
    def structure(self) -> tuple[Any, ...]:
        return self.name, self.edges


@dataclasses.dataclass(frozen=True)
class Graph:
    """A graph that missed: the root and its nodes. ``number`` counts from 0."""

    number: int
    nodes: tuple[Seen, ...]


_earlier: list[Graph] = []


def reset() -> None:
    """Forget the earlier graphs that misses are compared with."""
    _earlier.clear()


def miss(walk: Walk, is_static: bool = False) -> None:
    """Log why no recording fits, and remember this graph for the next miss. That the first is captured is no news."""
    root = Seen("torch::autograd::GraphRoot", (), tuple(walk.root_sizes()), walk.root_key())
    graph = Graph(_earlier[-1].number + 1 if _earlier else 0, (root, *(_seen(walk, n) for n in range(walk.num_nodes))))
    if is_heard("compiled_autograd_verbose") or is_heard("recompiles"):
        _tell(graph.nodes, is_static, lambda number: line_of(walk, number - 1) if number else "")
    _earlier.append(graph)
    del _earlier[:-_CAPACITY]


def _tell(nodes: Sequence[Seen], is_static: bool, line_of: Callable[[int], str]) -> None:
    for reason in _reasons(nodes, is_static, line_of):
        show("compiled_autograd_verbose", reason)
        show("recompiles", reason)
    if _earlier:
        number = _num_equal(_closest(nodes).nodes, nodes)
        tell("recompiles", _in_words(nodes, line_of(number) if number < len(nodes) else ""))


def _seen(walk: Walk, node: int) -> Seen:
    return Seen(
        walk.name(node),
        tuple(walk.edges(node)),
        tuple(walk.node_sizes(node)),
        walk.key_of(node),
        tuple(Held(tensor.dtype, tuple(tensor.shape), tensor.stride()) for tensor in walk.held(node)),
        walk.is_opaque(node),
        walk.is_leaf(node),
    )


def not_captured(reason: str) -> None:
    log("compiled_autograd", f"not captured: {reason}")


def not_dynamic(reason: str) -> None:
    log("compiled_autograd_verbose", f"sizes stay fixed: {reason}")


@torch.compiler.disable  # where a compiled step called the backward pass, what is printed of it is no part of the step
def captured(graph: Callable[[], Any]) -> None:
    """Print the captured graph, with metadata of values."""
    names = ("compiled_autograd", "compiled_autograd_verbose")
    logged = [artifact for artifact in names if is_logged(artifact)]
    if logged or is_heard(names[0]):
        log([*logged, names[0]][0], "TRACED GRAPH\n===== Compiled autograd graph =====\n" + _code(graph()))


def _code(graph: Any) -> str:
    return graph.print_readable(print_output=False, include_stride=True, include_device=True)


def _reasons(nodes: Sequence[Seen], is_static: bool, line_of: Callable[[int], str]) -> Iterator[str]:
    """Compare with the closest earlier graph: shapes that changed, or the first node that is new."""
    closest = _closest(nodes)
    best, number = closest.nodes, _num_equal(closest.nodes, nodes)
    if _is_alike(best, nodes) and any(a.sizes != b.sizes for a, b in zip(best, nodes)):
        for place, change in _changed_sizes(best, nodes):
            yield "Cache miss due to changed shapes: " + (f"{place} {change}" if is_static else f"marking {place} as dynamic")
    elif number == len(nodes) and nodes:
        yield f"Cache miss due to other memory or order: {_OTHER_ORDER}"
        return
    else:
        node = nodes[number]
        graphs = [graph.nodes for graph in _earlier if len(graph.nodes) > number and graph.nodes[number].name == node.name]
        sizes = sorted({len(graph[number].key) for graph in graphs})
        yield (
            f"Cache miss due to new autograd node: {node.name} (NodeCall {number}) "
            f"with key size {len(node.key)}, previous key sizes={sizes}"
        )
    if best:
        before = best[number] if number < len(best) else None
        line = line_of(number)
        yield (
            f"  closest: captured graph {closest.number}; first difference at {nodes[number].name} (NodeCall {number}): "
            f"{_difference(before, nodes[number])}\n  {f'at {line}' if line else HOW_TO_KNOW}"
        )


def _in_words(nodes: Sequence[Seen], line: str) -> str:
    """For people who listen: what is not as in the closest earlier graph; of sizes that changed, the first."""
    best = _closest(nodes).nodes
    if _is_alike(best, nodes) and (changed := [*_changed_sizes(best, nodes)]):
        (place, change), others = changed[0], len(changed) - 1
        more = f", and {others} other size{'s' * (others > 1)} changed" if others else ""
        return f"backward pass: {place} {change}{more}"
    number = _num_equal(best, nodes)
    if number == len(nodes):
        return f"backward pass: {_OTHER_ORDER}"
    difference = _difference(best[number] if number < len(best) else None, nodes[number])
    return f"backward pass: {nodes[number].name.split('::')[-1]}: {difference}" + (f"\n  at {line}" if line else "")


def _closest(nodes: Sequence[Seen]) -> Graph:
    return max(reversed(_earlier), key=lambda earlier: _likeness(earlier.nodes, nodes), default=Graph(-1, ()))


def _is_alike(best: Sequence[Seen], nodes: Sequence[Seen]) -> bool:
    return len(best) == len(nodes) and all(a.structure == b.structure for a, b in zip(best, nodes))


def _changed_sizes(best: Sequence[Seen], nodes: Sequence[Seen]) -> Iterator[tuple[str, str]]:
    for number, (before, now) in enumerate(zip(best, nodes)):
        for index, (old, new) in enumerate(zip(before.sizes, now.sizes)):
            if old != new:
                yield f"size idx {index} of {now.name} (NodeCall {number})", f"went from {old} to {new}"


def _difference(before: Seen | None, now: Seen) -> str:
    """What sets one node apart from the one that was in its place."""
    if before is None:
        return "the earlier graph ends before it"
    if before.name != now.name:
        return f"was {before.name}"
    if before.edges != now.edges:
        return "its gradients go to other nodes"
    if before.is_opaque != now.is_opaque:
        return "runs live now: it has hooks, or saved through hooks" if now.is_opaque else "ran live: it had hooks"
    if before.sizes != now.sizes:
        return f"sizes were {list(before.sizes)}, are {list(now.sizes)}"
    if now.is_leaf and len(before.tensors) != len(now.tensors):
        return "its leaf has a .grad now" if len(now.tensors) > len(before.tensors) else "its leaf had a .grad"
    for old, new in zip(before.tensors, now.tensors):
        if old != new:
            return f"holds {new}, where it held {old}"
    if now.name == "torch::autograd::GraphRoot":
        return "other gradients are asked for, or autocast or another global mode is different"
    return "a constant that it holds, or which gradients are needed, is different"


def _likeness(earlier: Sequence[Seen], nodes: Sequence[Seen]) -> tuple[int, int]:
    return _num_equal(earlier, nodes), sum(before == now for before, now in zip(earlier, nodes))


def _num_equal(earlier: Sequence[Seen], nodes: Sequence[Seen]) -> int:
    """How many nodes from the root on are the same in both."""
    for number, (before, now) in enumerate(zip(earlier, nodes)):
        if before != now:
            return number
    return min(len(earlier), len(nodes))
