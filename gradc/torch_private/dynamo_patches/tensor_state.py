"""What code sees of a tensor beside its values: its version, its grad and its node are read from the tensor itself."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.builtin import SetAttrBuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.tensor import TensorVariable

from gradc.torch_private.dynamo_names import GETATTR
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.settings import was_called_in_inference_mode
from gradc.torch_private.dynamo_patches.tensor_methods import tensor_method
from gradc.torch_private.dynamo_patches.zero_grad_hoist import note_read
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before, instead

_IS_NONE = ("IS_OP", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")

_TOLD_BY_RECORDING = ("requires_grad", "is_leaf", "grad_fn")

_NOTHING = ("CACHE", "NOP", "EXTENDED_ARG")


def read_from_the_tensor() -> Patch:
    """End the graph where ``_version``, ``_base``, ``is_inference`` or ``grad`` of no leaf is read, or ``data`` is set.

    ``data`` of a tensor from outside is another input of the graph, whose writes count by themselves as in eager; two that are
    returned are one. That of a tensor made inside ends the graph, too.

    In inference mode also where it is asked whether a call was recorded, as with ``requires_grad``: there none is.

    Code that reads a node is left alone; what it calls is compiled. That an argument has none is guarded, and whether
    it is a leaf.

    Behind a graph's end the tensor has eager's version and warns as in eager. Its node is a segment's, though: a function that
    asks its own tensors for more than whether they have one runs as it is.
    """
    return Patch(
        "read_from_the_tensor",
        "Of a tensor inside a graph Dynamo knows another version than eager, or the node of a segment; it forgets a warning.",
        (
            before(TensorVariable, "method_attr__version", _version),
            instead(TensorVariable, "method_attr_data", _data_of),
            around(GuardBuilder, "TENSOR_MATCH", _guard),
            before(SetAttrBuiltinVariable, "_call_setattr", _set),
            *tensor_method(before, "is_inference", _is_inference),
            before(TensorVariable, "method_attr_grad", _grad),
            around(TensorVariable, "method_attr_grad_fn", _node),
            before(TensorVariable, GETATTR, _attribute),
        ),
    )


def _version(self: Any, tx: Any) -> None:
    end_graph("_version", "gradc reads a tensor's version as eager does, between what comes before and after.")


def _set(self: Any, tx: Any, obj: Any, name_var: Any, val: Any) -> None:
    is_data = isinstance(obj, TensorVariable) and name_var.is_python_constant() and name_var.as_python_constant() == "data"
    if is_data:
        end_graph("data", "Dynamo sets it by an operator, behind which gradients of x are added up apart.")


def _is_inference(self: Any, tx: Any, *args: Any) -> None:
    end_graph("is_inference", "What is traced is not made in inference mode.")


def _grad(self: Any, tx: Any) -> None:
    if self.has_grad_fn and not (self.source and tx.output.resolve_source_value(self.source).retains_grad):
        end_graph("grad of a tensor that is no leaf", "torch warns whoever reads it, and so each guard that would.")
    note_read(tx)


def _attribute(self: Any, tx: Any, name: str) -> None:
    if name == "_base":
        end_graph("_base", "What is traced is no view where the tensor is one.")
    is_recorded = name in _TOLD_BY_RECORDING and not self.source and self.requires_grad
    if is_recorded and was_called_in_inference_mode():
        end_graph("requires_grad in inference mode", "What is traced is not made in inference mode.", name)
    if name == "is_leaf" and self.source:
        install_guard(AttrSource(self.source, name).make_guard(GuardBuilder.CONSTANT_MATCH))


def _node(original: Method, self: Any, tx: Any) -> Any:
    if not self.has_grad_fn or self.source:
        if self.source and not self.has_grad_fn:
            install_guard(AttrSource(self.source, "grad_fn").make_guard(GuardBuilder.CONSTANT_MATCH))
        return original(self, tx)
    if not _is_compared_with_none(tx):
        end_graph("grad_fn", "What gradc compiles has segments for nodes.", skip_frame=True)
    return ConstantVariable.create(...)  # which is not None, either


def _guard(original: Method, self: Any, guard: Any, *args: Any, **kwargs: Any) -> None:
    """``x.data`` is a new tensor each time: one that is gone leaves its address to the next."""
    names, guards = self.no_tensor_aliasing_names, self.no_tensor_aliasing_guard_managers
    num_before = len(names)
    original(self, guard, *args, **kwargs)
    if _is_data(guard.originating_source):
        del names[num_before:], guards[num_before:]


def _data_of(self: Any, tx: Any) -> Any:
    """``x.data`` of a tensor from outside, read again when the graph begins: a tensor with a version of its own."""
    is_outside = self.source and type(self) is TensorVariable and self.as_proxy().node.op == "placeholder"
    value: Any = tx.output.resolve_source_value(self.source) if is_outside else None
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_inference():
        end_graph("data", "What is written into x.data does not count as a change of x.")
    held: dict[Any, torch.Tensor] = vars(tx.output).setdefault("gradc_data", {})  # or others would get their ids
    source = AttrSource(self.source, "data")
    while source in held:  # x.data.data is another tensor, as is each x.data
        source = AttrSource(source, "data")
    held[source] = value.data
    return VariableBuilder(tx, source)(held[source]).realize()


def _is_data(source: Any) -> bool:
    return isinstance(source, AttrSource) and source.member == "data"


def _is_compared_with_none(tx: Any) -> bool:
    following = [inst for inst in tx.instructions[tx.instruction_pointer :][:6] if inst.opname not in _NOTHING]
    if following[0].opname == "LOAD_CONST" and following[0].argval is None:
        following = following[1:]
    return following[0].opname in _IS_NONE
