"""``loss.backward()`` in a loop of few iterations, as where gradients are accumulated: each iteration is compiled.

Dynamo leaves a function to Python where a graph ends inside of a loop: it cannot tell how often it would have to go on behind.
Of ``for i in range(4)`` it can. What goes on there takes the iterator, and is compiled for each number that it still has.
"""

from __future__ import annotations

import sys
from typing import Any

from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.iter import IteratorVariable
from torch._dynamo.variables.lists import ListIteratorVariable, RangeIteratorVariable

from gradc.torch_private.dynamo_patches.optimizers import NATIVE_STEP, ZERO_GRAD_FIRST
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_MOST_ITERATIONS = 8  # Dynamo compiles no function more often
_ITERATORS = (IteratorVariable, ListIteratorVariable, RangeIteratorVariable)
_OF_WHAT_IS_FIXED = (type(iter(range(0))), type(iter(())))
_ENDS = ("Unsupported Tensor.backward() call", NATIVE_STEP, ZERO_GRAD_FIRST)


def go_on_in_short_loops() -> Patch:
    """End the graph, and go on behind, where the loop is over a ``range`` that has few numbers left."""
    return Patch(
        "go_on_in_short_loops",
        "A step that accumulates gradients was left to Python as a whole.",
        (around(InstructionTranslatorBase, "maybe_has_backedge", _maybe_has_backedge),),
    )


def _maybe_has_backedge(original: Method, self: Any) -> bool:
    error = sys.exc_info()[1]  # Dynamo asks where it handles it
    is_taken = str(getattr(error, "msg", error)).startswith(_ENDS)
    return not (is_taken and _is_in_short_loop(self)) and original(self)


def _is_in_short_loop(tx: Any) -> bool:
    """Whether what jumps back is one loop over a short range, whose iterator is on the stack."""
    if tx.parent is not None:
        return False
    iterators = [each for each in (value.realize() for value in tx.stack) if isinstance(each, _ITERATORS)]
    place = tx.indexof[tx.current_instruction]
    jumps = [inst for inst in tx.instructions[place:] if inst.target is not None and tx.indexof[inst.target] <= place]
    if len(iterators) != 1 or not jumps or not all(inst.target is jumps[0].target for inst in jumps):
        return False
    left = _num_left(tx, iterators[0])
    return jumps[0].target.opname == "FOR_ITER" and left is not None and left <= _MOST_ITERATIONS


def _num_left(tx: Any, iterator: Any) -> int | None:
    """How many numbers a range still has; None of what is no range. Behind the first end of a graph it is one of a tuple."""
    if isinstance(iterator, RangeIteratorVariable):
        return int(iterator.len)
    if iterator.source is None or not isinstance(iterator, ListIteratorVariable):
        return None
    of = type(tx.output.resolve_source_value(iterator.source))
    is_fixed = of in _OF_WHAT_IS_FIXED and all(isinstance(item, ConstantVariable) for item in iterator.items)
    return len(iterator.items) - iterator.index if is_fixed else None
