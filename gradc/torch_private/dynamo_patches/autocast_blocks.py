"""Graph breaks inside ``with torch.autocast(...)``, where Dynamo would leave the block and enter it again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables.ctx_manager import AutocastModeVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.modes import autocast_nesting
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before


def leave_broken_autocast_blocks_to_python() -> Patch:
    """Do not compile a function that opens autocast and breaks its graph inside: its own calls are compiled one by one.

    Whoever leaves the outermost block drops the copies of weights that autocast keeps. Eager makes one copy for both sides of
    the break, and adds up the gradients of the two in its type; Dynamo makes two.
    """
    return Patch(
        "leave_broken_autocast_blocks_to_python",
        "At a graph break Dynamo leaves autocast and enters it again: weights are cast anew, and gradients rounded otherwise.",
        (before(OutputGraph, "compile_subgraph", _compile_subgraph),),
    )


def _compile_subgraph(self: Any, tx: Any, reason: Any, *args: Any, **kwargs: Any) -> None:
    if reason.graph_break and _drops_casts(tx):
        end_graph(
            "graph break under autocast",
            f"autocast keeps copies of weights until its block ends; in it: {_kind(reason)}.",
            reason.reason,
            hints=["Open autocast around the compiled function."],
        )


def _kind(reason: Any) -> str:
    return str(reason.reason).strip().partition("\n")[0]


def _drops_casts(tx: Any) -> bool:
    """True if a block that keeps copies is open, and none around what is compiled: there they would live on."""
    blocks = list(_autocast_blocks(tx))
    return any(is_enabled and keeps is not False for *_, is_enabled, keeps in blocks) and autocast_nesting() <= len(blocks)


def _autocast_blocks(tx: Any) -> Iterator[tuple[Any, ...]]:
    """(device type, dtype, whether enabled, whether copies are kept) of each block that what is compiled has opened."""
    contexts = (block.with_context for block in open_blocks(tx))
    return (context.target_values for context in contexts if isinstance(context, AutocastModeVariable))


def open_blocks(tx: Any) -> Iterator[Any]:
    """Each ``with`` and ``try`` that what is compiled is inside of, the innermost function's first."""
    while tx is not None:
        yield from tx.block_stack
        tx = tx.parent
