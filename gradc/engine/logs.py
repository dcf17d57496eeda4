"""What compiled autograd says in the logs ``compiled_autograd`` and ``compiled_autograd_verbose``.

miss: Walk -> None          why no recording fits: the closest earlier graph, and the first difference
captured: graph -> None     the captured graph, as code
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from gradc.report.record import is_logged, log

Shapes = tuple[int, ...]
_KEPT = 64


@dataclasses.dataclass(frozen=True)
class Seen:
    """One node of a graph that missed: its name and edges, the sizes it holds, and its part of the key."""

    name: str
    edges: tuple[int, ...]
    sizes: Shapes
    key: bytes

    @property
    def structure(self) -> tuple[Any, ...]:
        return self.name, self.edges


_earlier: list[list[Seen]] = []


def reset() -> None:
    """Forget the earlier graphs that misses are compared with."""
    _earlier.clear()


def miss(walk: Any, is_static: bool = False) -> None:
    """Log why no recording fits, and remember this graph for the next miss."""
    if not is_logged("compiled_autograd_verbose") and not is_logged("recompiles"):
        return
    nodes = [Seen("torch::autograd::GraphRoot", (), tuple(walk.root_sizes()), walk.root_key())]
    nodes += [
        Seen(walk.name(n), tuple(walk.edges(n)), tuple(walk.node_sizes(n)), walk.key_of(n)) for n in range(walk.num_nodes)
    ]
    for reason in _reasons(nodes, is_static):
        log("compiled_autograd_verbose", reason)
        log("recompiles", reason)
    _earlier.append(nodes)
    del _earlier[:-_KEPT]


def not_captured(reason: str) -> None:
    log("compiled_autograd", f"not captured: {reason}")


def not_dynamic(reason: str) -> None:
    log("compiled_autograd_verbose", f"sizes stay fixed: {reason}")


def captured(graph: Callable[[], Any]) -> None:
    """Print the captured graph, with metadata of values."""
    for artifact in ("compiled_autograd", "compiled_autograd_verbose"):
        if is_logged(artifact):
            log(artifact, "TRACED GRAPH\n===== Compiled autograd graph =====\n" + _code(graph()))
            return


def _code(graph: Any) -> str:
    return graph.print_readable(print_output=False, include_stride=True, include_device=True)


def _reasons(nodes: list[Seen], is_static: bool) -> Iterator[str]:
    """Compare with the earlier graph that agrees longest: shapes that changed, or the first node that is new."""
    best = max(_earlier, key=lambda earlier: _num_equal(earlier, nodes), default=[])
    alike = len(best) == len(nodes) and all(a.structure == b.structure for a, b in zip(best, nodes))
    if alike and any(a.sizes != b.sizes for a, b in zip(best, nodes)):
        for number, (before, now) in enumerate(zip(best, nodes)):
            for index, (old, new) in enumerate(zip(before.sizes, now.sizes)):
                if old != new:
                    place = f"size idx {index} of {now.name} (NodeCall {number})"
                    change = f"{place} went from {old} to {new}" if is_static else f"marking {place} as dynamic"
                    yield f"Cache miss due to changed shapes: {change}"
        return
    number = min(_num_equal(best, nodes), len(nodes) - 1)
    node = nodes[number]
    sizes = sorted({len(graph[number].key) for graph in _earlier if len(graph) > number and graph[number].name == node.name})
    yield (
        f"Cache miss due to new autograd node: {node.name} (NodeCall {number}) "
        f"with key size {len(node.key)}, previous key sizes={sizes}"
    )


def _num_equal(earlier: list[Seen], nodes: list[Seen]) -> int:
    """How many nodes from the root on are the same in both."""
    for number, (before, now) in enumerate(zip(earlier, nodes)):
        if before != now:
            return number
    return min(len(earlier), len(nodes))
