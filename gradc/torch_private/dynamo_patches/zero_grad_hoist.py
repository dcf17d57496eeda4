"""``optimizer.zero_grad()`` at the beginning of a step, in the frame of what is compiled behind it: called before the graph.

    is_cleared_first:  (tx, zero_grad, quick_method, arguments, keywords) -> True if the call will be made there
    call_of_zero_grad: the same, and the variable that holds the optimizer, if one does -> bytecode that makes the call; None
                       where it is not as usual
    note_cleared:      tx -> None, where such a call is traced
    note_read:         tx -> None, where a gradient is read while tracing; ends the graph behind such a call
    is_read:           tx -> whether one has been

Nothing has been calculated or changed before. Guards are asked before the call is made, so none may be about a gradient: those
that ``set_to_none=False`` would write into are left to the graph break.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.codegen import PyCodegen
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew

from gradc.torch_private.dynamo_patches.autocast_blocks import open_blocks
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.leaves import is_true
from gradc.torch_private.dynamo_patches.quick_methods import QuickMethod

_STATE = "gradc_gradients"  # of Dynamo's output: what became of gradients while tracing
_READ, _CLEARED = "read", "cleared"


def is_cleared_first(
    tx: Any, zero_grad: Any, quick_method: QuickMethod, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> bool:
    """See the module's docstring."""
    call = None if _has_begun(tx) or is_read(tx) else call_of_zero_grad(tx, zero_grad, quick_method, arguments, keywords)
    if call is None:
        return False
    tx.output.pregraph_bytecode.extend(call)
    note_cleared(tx)
    return True


def call_of_zero_grad(
    tx: Any,
    zero_grad: Any,
    quick_method: QuickMethod,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    variable: str | None = None,
) -> list[Any] | None:
    """See the module's docstring."""
    optimizer, *flags = [*zero_grad.self_args(), *arguments, *keywords.values()] or [None]
    if getattr(optimizer, "source", None) is None or not all(map(is_true, flags)):
        return None
    quick = None if flags else quick_method("zero_grad", zero_grad.fn, zero_grad.fn, tx.output.compiler_fn)
    code, name = PyCodegen(tx.output.root_tx), tx.output.install_global_by_id("__gradc_zero_grad", quick or zero_grad.fn)
    code.add_push_null(lambda: code.append_output(code.create_load_global(name, add=True)))
    code(optimizer) if variable is None else code.append_output(code.create_load(variable))
    code.foreach(flags)
    code.extend_output(code.create_call_function_kw(1 + len(flags), tuple(keywords), push_null=False))
    code.pop_top()
    return code.get_instructions()


def _has_begun(tx: Any) -> bool:
    """True where something has been calculated, or changed but modules; inside of ``with`` or ``try``; and in a graph inside of
    another one, as a checkpoint's."""
    effects = tx.output.side_effects
    changed = [variable for variable in effects.id_to_variable.values() if effects.is_modified(variable)]
    is_inside = len(tx.output.tracers) > 1 or any(True for _ in open_blocks(tx))
    return is_inside or tx.output.count_calls() > 0 or bool(effects.tensor_hooks) or not all(map(_is_new_or_module, changed))


def _is_new_or_module(changed: Any) -> bool:
    is_new = isinstance(changed.mutation_type, AttributeMutationNew | ValueMutationNew)
    return is_new or isinstance(vars(changed.realize()).get("value"), torch.nn.Module)


def note_cleared(tx: Any) -> None:
    """See the module's docstring."""
    setattr(tx.output, _STATE, _CLEARED)


def note_read(tx: Any) -> None:
    """See the module's docstring."""
    if _state(tx) == _CLEARED:
        end_graph("grad behind zero_grad", "It is read there and then.")
    setattr(tx.output, _STATE, _READ)


def is_read(tx: Any) -> bool:
    return _state(tx) == _READ


def _state(tx: Any) -> str | None:
    return getattr(tx.output, _STATE, None)
