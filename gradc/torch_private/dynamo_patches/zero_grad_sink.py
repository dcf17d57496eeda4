"""``optimizer.zero_grad()`` shortly before ``loss.backward()``, in the frame of what was compiled: called behind the graph.

    is_cleared_last:     (tx, zero_grad, quick_method, arguments, keywords) -> True if the call will be made there
    clear_behind_graphs: the patch that makes it

The graph of the loss ends at ``backward`` anyway. Between the two calls stands nothing but what is done with a loss, as
``scaler.scale(loss)`` or ``-10 * torch.log10(loss)``, and other optimizers' ``zero_grad()``: so gradients live no longer than
they did. Where the graph ends before, they are cleared there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._dynamo.codegen import PyCodegen
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables.builtin import SetAttrBuiltinVariable
from torch.nn import functional

from gradc.torch_private.dynamo_patches.autocast_blocks import open_blocks
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.quick_methods import QuickMethod
from gradc.torch_private.dynamo_patches.zero_grad_hoist import call_of_zero_grad, is_read, note_cleared
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before

_WAITING = "gradc_zero_grad"  # of Dynamo's output
_MOST = 40  # instructions from the one call to the other
_BETWEEN = (
    "LOAD_", "STORE_FAST", "POP_TOP", "BINARY_", "UNARY_", "CALL", "PRECALL", "KW_NAMES", "BUILD_", "COPY", "SWAP", "NOP",
)  # fmt: skip
_SCALE = "scale"  # of a GradScaler
_ZERO_GRAD = "zero_grad"  # of another optimizer


class _Waiting(NamedTuple):
    instructions: list[Any]  # from behind the call to that of backward: where the graph may end
    code: list[Any]


def is_cleared_last(
    tx: Any, zero_grad: Any, quick_method: QuickMethod, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> bool:
    """See the module's docstring."""
    instructions = _to_backward(tx)
    if not instructions or is_read(tx) or any(True for _ in open_blocks(tx)):
        return False
    variable = tx.output.new_var("optimizer")
    call = call_of_zero_grad(tx, zero_grad, quick_method, arguments, keywords, variable)
    if call is None:
        return False
    code = PyCodegen(tx.output.root_tx)
    code(zero_grad.self_args()[0])
    code.store(variable)
    tx.output.pregraph_bytecode.extend(code.get_instructions())
    waiting = getattr(tx.output, _WAITING, _Waiting(instructions, []))
    setattr(tx.output, _WAITING, waiting._replace(code=[*waiting.code, *call]))
    note_cleared(tx)
    return True


def clear_behind_graphs() -> Patch:
    """See the module's docstring."""
    return Patch(
        "clear_behind_graphs",
        "A graph that ends at zero_grad is not the one whose loss goes straight to backward.",
        (
            around(OutputGraph, "compile_subgraph", _compile_subgraph),
            before(SetAttrBuiltinVariable, "_call_setattr", _set),
        ),
    )


def _compile_subgraph(original: Method, self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    waiting = getattr(self, _WAITING, None)
    if waiting is not None and tx.current_instruction not in waiting.instructions:
        end_graph("zero_grad of an optimizer", "The graph did not end at the backward() behind it.")
    metadata = original(self, tx, *args, **kwargs)
    if waiting is not None:
        self.add_output_instructions(waiting.code)
    return metadata


def _set(self: Any, tx: Any, obj: Any, name_var: Any, val: Any) -> None:
    if hasattr(tx.output, _WAITING) and name_var.is_python_constant() and name_var.as_python_constant() == "grad":
        end_graph("grad behind zero_grad", "It is set there and then.")


def _to_backward(tx: Any) -> list[Any]:
    """The instructions from behind this call to that of ``backward``; none if anything else may stand between."""
    if tx.parent is not None or tx.current_instruction.exn_tab_entry is not None:
        return []
    place, name = tx.indexof[tx.current_instruction] + 1, ""
    for end, inst in enumerate(tx.instructions[place : place + _MOST], 1):
        if inst.exn_tab_entry is not None or not inst.opname.startswith(_BETWEEN):
            return []
        if (inst.opname == "LOAD_GLOBAL" and inst.arg & 1) or inst.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            name = inst.argval
        if inst.opname.startswith("CALL"):
            if name == "backward":
                return tx.instructions[place : place + end]
            if not _is_done_with_losses(name):
                return []
    return []


def _is_done_with_losses(name: str) -> bool:
    """Of what is called, by its name: what is no function of torch's may calculate a lot, while gradients live."""
    return name in (_SCALE, _ZERO_GRAD) or any(hasattr(owner, name) for owner in (torch, torch.Tensor, functional))
