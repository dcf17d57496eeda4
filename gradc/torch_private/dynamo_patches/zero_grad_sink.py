"""``optimizer.zero_grad()`` right before ``loss.backward()``, in the frame of what was compiled: called behind the graph.

    is_cleared_last:     (tx, zero_grad, quick_method, arguments, keywords) -> True if the call will be made there
    clear_behind_graphs: the patch that makes it

The graph of the loss ends at ``backward`` anyway. Between the two calls nothing is looked up but the loss's method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch._dynamo.codegen import PyCodegen
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables import TensorVariable

from gradc.torch_private.dynamo_patches.autocast_blocks import open_blocks
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.quick_methods import QuickMethod
from gradc.torch_private.dynamo_patches.zero_grad_hoist import call_of_zero_grad, is_read
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_WAITING = "gradc_zero_grad"  # of Dynamo's output


class _Waiting(NamedTuple):
    backward: Any  # the instruction that calls it
    code: list[Any]


def is_cleared_last(
    tx: Any, zero_grad: Any, quick_method: QuickMethod, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> bool:
    """See the module's docstring."""
    backward = _backward_behind(tx)
    if backward is None or hasattr(tx.output, _WAITING) or is_read(tx) or any(True for _ in open_blocks(tx)):
        return False
    variable = tx.output.new_var("optimizer")
    call = call_of_zero_grad(tx, zero_grad, quick_method, arguments, keywords, variable)
    if call is None:
        return False
    code = PyCodegen(tx.output.root_tx)
    code(zero_grad.self_args()[0])
    code.store(variable)
    tx.output.pregraph_bytecode.extend(code.get_instructions())
    setattr(tx.output, _WAITING, _Waiting(backward, call))
    return True


def clear_behind_graphs() -> Patch:
    """See the module's docstring."""
    return Patch(
        "clear_behind_graphs",
        "A graph that ends at zero_grad is not the one whose loss goes straight to backward.",
        (around(OutputGraph, "compile_subgraph", _compile_subgraph),),
    )


def _compile_subgraph(original: Method, self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    waiting = getattr(self, _WAITING, None)
    if waiting is not None and tx.current_instruction is not waiting.backward:
        end_graph("zero_grad of an optimizer", "The graph did not end at the backward() behind it.")
    metadata = original(self, tx, *args, **kwargs)
    if waiting is not None:
        self.add_output_instructions(waiting.code)
    return metadata


def _backward_behind(tx: Any) -> Any:
    """The instruction that calls ``loss.backward()``, if that is the next statement, and the graph makes the loss."""
    if tx.parent is not None:
        return None
    place = tx.indexof[tx.current_instruction] + 1
    following = [inst for inst in tx.instructions[place : place + 12] if inst.opname not in ("PRECALL", "CACHE")][:4]
    match [(inst.opname, inst.argval) for inst in following]:
        case [("POP_TOP", _), ("LOAD_FAST" | "LOAD_FAST_BORROW", name), (_, "backward"), ("CALL", 0)]:
            loss = tx.symbolic_locals.get(name)
            is_made = isinstance(loss, TensorVariable) and loss.as_proxy().node.op not in ("placeholder", "get_attr")
            is_handled = any(inst.exn_tab_entry is not None for inst in (tx.current_instruction, *following))
            return following[-1] if is_made and not is_handled else None
    return None
