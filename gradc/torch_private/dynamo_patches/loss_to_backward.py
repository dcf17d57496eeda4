"""A loss that goes straight to ``backward()``, and whose history nobody looks at: its forward and backward may be joint.

    join_losses:            the patch, which finds such a loss before its graph is compiled
    joint_of:               graph -> what its joint calls go by, and the number of the output that is the loss
    without_history:        graph -> the same, where what is only read for its number beside such a loss comes without history
    begin_joint_if_dropped: tx, bytecode -> None; what runs joint backwards is called in place of the loss's method, if the
                            bytecode behind hands the loss on to nobody

Between the graph and ``backward`` the bytecode hands values on. What it writes into objects must not be the loss: an object's
own code could look at it. Nor may what else leaves the graph have a history: of ``(loss / 2).backward()`` and
``loss = policy + value`` the parts do, though scripts only log them. Where the bytecode behind does nothing with one but
``part.item()``, ``part.detach()`` or ``part.argmax(1)``, nobody sees that it has none.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.bytecode_transformation import create_call_function, create_swap
from torch._dynamo.codegen import PyCodegen
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables import TensorVariable
from torch._dynamo.variables.base import AttributeMutationExisting, ValueMutationExisting, VariableTracker
from torch._dynamo.variables.misc import GetAttrVariable

from gradc.torch_private.dynamo_patches.reachable_code import all_behind
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before

_JOINT = "gradc_joint"  # of a node of the graph, and of Dynamo's output
_IS_NUMBER = "gradc_is_number"  # of a node of the graph
_OF_NUMBERS = ("detach", "item", "argmax", "argmin", "shape", "size", "dim", "numel")  # of a tensor, that look at no history
_THAT_SEE_VARIABLES = ("locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "stack")
_HAS_NULL_BELOW = sys.version_info < (3, 13)  # the callable stands above of what marks it as no method; else below


def join_losses(make_joint: Callable[[], Any]) -> Patch:
    """``make_joint``: () -> what has ``begin()``, which gives what runs joint backwards; None where there is none."""

    def compile_subgraph(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
        loss = _straight_loss(tx)
        if loss is not None and (joint := make_joint()) is not None:
            loss.as_proxy().node.meta[_JOINT] = joint
            setattr(self, _JOINT, (loss, joint))
            for part in _only_numbers(tx, loss):
                part.as_proxy().node.meta[_IS_NUMBER] = True

    return Patch(
        "join_losses",
        "Between a step's forward and backward stand nodes and saved tensors, which most steps make for nobody.",
        (before(OutputGraph, "compile_subgraph", compile_subgraph),),
    )


def joint_of(graph: torch.fx.GraphModule) -> tuple[Any, int]:
    """See the module's docstring; (None, 0) if no output goes straight to backward."""
    outputs: Any = graph.graph.output_node().args[0]
    found = ((node.meta[_JOINT], number) for number, node in enumerate(outputs) if _JOINT in getattr(node, "meta", ()))
    return next(found, (None, 0))


def without_history(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """See the module's docstring."""
    outputs: Any = graph.graph.output_node().args[0]
    if not any(_IS_NUMBER in getattr(node, "meta", ()) for node in outputs):
        return graph
    nodes = copy.deepcopy(graph.graph)  # Dynamo will look at its own once more
    output = nodes.output_node()
    with nodes.inserting_before(output):
        given: Any = output.args[0]
        cut = [nodes.call_method("detach", (each,)) if _IS_NUMBER in getattr(each, "meta", ()) else each for each in given]
    output.args = (tuple(cut),)
    return torch.fx.GraphModule(graph, nodes)


def begin_joint_if_dropped(tx: Any, instructions: Sequence[Any]) -> None:
    """See the module's docstring. ``instructions``: all that follow, in which the loss's number may be read."""
    found = vars(tx.output).get(_JOINT)
    if found is None or tx.cellvars() or any(_holds(value, found[0]) for value in tx.stack):
        return
    if not any(_hands_on(tx, found[0], *pair) for pair in itertools.pairwise([*instructions, None])):
        _begin_joint(tx, found[1])


def _hands_on(tx: Any, loss: Any, inst: Any, following: Any) -> bool:
    if not inst.opname.startswith("LOAD_FAST"):
        return False
    names = inst.argval if isinstance(inst.argval, tuple) else (inst.argval,)
    loaded = [tx.symbolic_locals[name].unwrap() for name in names if name in tx.symbolic_locals]
    if [_is(variable, loss) for variable in loaded] == [True]:
        return following.opname not in ("LOAD_METHOD", "LOAD_ATTR") or following.argval not in _OF_NUMBERS
    return any(_holds(variable, loss) for variable in loaded)


def _begin_joint(tx: Any, joint: Any) -> None:
    code = tx.output.output_instructions
    if code[-1].opname != "CALL" or code[-1].arg != 0:
        return
    call = code.pop()
    if code[-1].opname == "PRECALL":
        code.pop()
    name = tx.output.install_global_by_id("__gradc_backward", joint.begin())
    calls = create_call_function(1, push_null=False)
    calls[-1].copy_positions(call)
    load = PyCodegen(tx.output.root_tx).create_load_global(name, add=True)
    code += [load, *create_swap(2 if _HAS_NULL_BELOW else 3), *calls]


def _holds(value: Any, loss: Any, effects: Any = None) -> bool:
    """Whether the loss is one of what ``value``, a variable of Dynamo's, consists of; or of what ``effects`` write into it."""
    found = []
    VariableTracker.visit(lambda variable: found.append(_is(variable, loss)), value, side_effects=effects)
    return any(found)


def _is(variable: Any, loss: Any) -> bool:
    """``type``, since ``isinstance`` would have Dynamo guard what has not been read."""
    return issubclass(type(variable), TensorVariable) and variable.as_proxy().node is loss.as_proxy().node


def _only_numbers(tx: Any, loss: Any) -> list[Any]:
    """The variables with a history, beside the loss, of which only the numbers are read behind ``backward``."""
    if tx.cellvars() or tx.block_stack or any(name in _THAT_SEE_VARIABLES for name in tx.f_code.co_names):
        return []
    behind = all_behind(tx, tx.current_instruction)
    parts = {
        variable.as_proxy().node: variable
        for variable in (value.unwrap() for value in tx.symbolic_locals.values())
        if _is_made(variable) and not _is(variable, loss) and variable.as_proxy().node.meta["example_value"].requires_grad
    }
    return [part for part in parts.values() if not _is_seen(tx, part, behind)]


def _is_seen(tx: Any, part: Any, behind: Sequence[Any]) -> bool:
    """Whether more than its number may be: by bytecode, or by the code of an object that has it."""
    effects = tx.output.side_effects
    known = [value for value in effects.id_to_variable.values() if type(value) is not TensorVariable]
    is_held = any(_holds(value, part, effects) for value in known) or any(_holds(value, part) for value in tx.stack)
    return is_held or any(_hands_on(tx, part, *pair) for pair in itertools.pairwise([*behind, None]))


def _is_made(variable: Any) -> bool:
    is_value = type(variable) is TensorVariable and variable.as_proxy().node.op not in ("placeholder", "get_attr")
    return is_value and isinstance(variable.as_proxy().node.meta.get("example_value"), torch.Tensor)


def _straight_loss(tx: Any) -> Any:
    inst, effects = tx.current_instruction, tx.output.side_effects
    if tx.parent is not None or inst.opname != "CALL" or inst.arg != 0 or len(tx.stack) < 2 or effects.tensor_hooks:
        return None
    method = tx.stack[-1 if _HAS_NULL_BELOW else -2].unwrap()
    if type(method) is not GetAttrVariable or method.name != "backward":
        return None
    loss = method.obj.unwrap()
    old = filter(_is_from_outside, effects.id_to_variable.values())
    is_written = any(effects.is_modified(variable) and _holds(variable, loss, effects) for variable in old)
    return loss if _is_made(loss) and not is_written else None


def _is_from_outside(variable: Any) -> bool:
    return isinstance(variable.mutation_type, AttributeMutationExisting | ValueMutationExisting)
