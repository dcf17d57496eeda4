"""What code sees of a tensor beside its values: its version, its grad and its node are read from the tensor itself."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.builtin import SetAttrBuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.tensor import TensorVariable

from gradc.torch_private.dynamo_names import GETATTR
from gradc.torch_private.dynamo_patches.cleared_first import note_read
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc, was_called_in_inference_mode
from gradc.torch_private.dynamo_patches.tensor_methods import replace_tensor_method
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

_IS_NONE = ("IS_OP", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE")

_TOLD_BY_RECORDING = ("requires_grad", "is_leaf", "grad_fn")

_NOTHING = ("CACHE", "NOP", "EXTENDED_ARG")


def read_from_the_tensor(is_ours: IsOurs) -> Patch:
    """End the graph where ``_version``, ``_base``, ``is_inference`` or ``grad`` of no leaf is read, or ``data`` is set.

    ``data`` of a tensor from outside is another input of the graph, whose writes count by themselves as in eager; two that are
    returned are one. That of a tensor made inside ends the graph, too.

    In inference mode also where it is asked whether a call was recorded, as with ``requires_grad``: there none is.

    Code that reads a node is left alone; what it calls is compiled. That an argument has none is guarded, and whether
    it is a leaf.

    Behind a graph's end the tensor has eager's version and warns as in eager. Its node is a segment's, though: a function that
    asks its own tensors for more than whether they have one runs as it is.
    """

    def make_version(original: Method) -> Method:
        @functools.wraps(original)
        def version(self: Any, tx: Any) -> Any:
            if is_ours(tx.output.compiler_fn):
                end_graph("_version", "gradc reads a tensor's version as eager does, between what comes before and after.")
            return original(self, tx)

        return version

    def make_data(original: Method) -> Method:
        @functools.wraps(original)
        def data(self: Any, tx: Any) -> Any:
            if is_ours(tx.output.compiler_fn):
                return _data_of(self, tx)
            return original(self, tx)

        return data

    def make_set(original: Method) -> Method:
        @functools.wraps(original)
        def set_attribute(self: Any, tx: Any, obj: Any, name: Any, value: Any) -> Any:
            is_data = isinstance(obj, TensorVariable) and name.is_python_constant() and name.as_python_constant() == "data"
            if is_data and is_ours(tx.output.compiler_fn):
                end_graph("data", "Dynamo sets it by an operator, behind which gradients of x are added up apart.")
            return original(self, tx, obj, name, value)

        return set_attribute

    def make_is_inference(original: Method) -> Method:
        @functools.wraps(original)
        def is_inference(self: Any, tx: Any, *args: Any) -> Any:
            if is_ours(tx.output.compiler_fn):
                end_graph("is_inference", "What is traced is not made in inference mode.")
            return original(self, tx, *args)

        return is_inference

    def make_grad(original: Method) -> Method:
        @functools.wraps(original)
        def grad(self: Any, tx: Any) -> Any:
            if is_ours(tx.output.compiler_fn):
                if self.has_grad_fn and not (self.source and tx.output.resolve_source_value(self.source).retains_grad):
                    end_graph("grad of a tensor that is no leaf", "torch warns whoever reads it, and so each guard that would.")
                note_read(tx)
            return original(self, tx)

        return grad

    def make_attribute(original: Method) -> Method:
        @functools.wraps(original)
        def attribute(self: Any, tx: Any, name: str) -> Any:
            if name == "_base" and is_ours(tx.output.compiler_fn):
                end_graph("_base", "What is traced is no view where the tensor is one.")
            is_recorded = name in _TOLD_BY_RECORDING and not self.source and self.requires_grad
            if is_recorded and was_called_in_inference_mode() and is_ours(tx.output.compiler_fn):
                end_graph("requires_grad in inference mode", "What is traced is not made in inference mode.", name)
            if name == "is_leaf" and self.source and is_ours(tx.output.compiler_fn):
                install_guard(AttrSource(self.source, name).make_guard(GuardBuilder.CONSTANT_MATCH))
            return original(self, tx, name)

        return attribute

    def make_node(original: Method) -> Method:
        @functools.wraps(original)
        def node(self: Any, tx: Any) -> Any:
            if not self.has_grad_fn or self.source or not is_ours(tx.output.compiler_fn):
                if self.source and not self.has_grad_fn and is_ours(tx.output.compiler_fn):
                    install_guard(AttrSource(self.source, "grad_fn").make_guard(GuardBuilder.CONSTANT_MATCH))
                return original(self, tx)
            if not _is_compared_with_none(tx):
                end_graph("grad_fn", "What gradc compiles has segments for nodes.", skip_frame=True)
            return ConstantVariable.create(...)  # which is not None, either

        return node

    def make_guard(original: Method) -> Method:
        @functools.wraps(original)
        def tensor_match(self: Any, guard: Any, *args: Any, **kwargs: Any) -> None:
            """``x.data`` is a new tensor each time: one that is gone leaves its address to the next."""
            names, guards = self.no_tensor_aliasing_names, self.no_tensor_aliasing_guard_managers
            before = len(names)
            original(self, guard, *args, **kwargs)
            if _is_data(guard.originating_source) and is_compiling_for_gradc():
                del names[before:], guards[before:]

        return tensor_match

    return Patch(
        "read_from_the_tensor",
        "Of a tensor inside a graph Dynamo knows another version than eager, or the node of a segment; it forgets a warning.",
        (
            Replace(TensorVariable, "method_attr__version", make_version),
            Replace(TensorVariable, "method_attr_data", make_data),
            Replace(GuardBuilder, "TENSOR_MATCH", make_guard),
            Replace(SetAttrBuiltinVariable, "_call_setattr", make_set),
            *replace_tensor_method("is_inference", make_is_inference),
            Replace(TensorVariable, "method_attr_grad", make_grad),
            Replace(TensorVariable, "method_attr_grad_fn", make_node),
            Replace(TensorVariable, GETATTR, make_attribute),
        ),
    )


def _data_of(variable: Any, tx: Any) -> Any:
    """``x.data`` of a tensor from outside, read again when the graph begins: a tensor with a version of its own."""
    is_outside = variable.source and type(variable) is TensorVariable and variable.as_proxy().node.op == "placeholder"
    value: Any = tx.output.resolve_source_value(variable.source) if is_outside else None
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_inference():
        end_graph("data", "What is written into x.data does not count as a change of x.")
    held: dict[Any, torch.Tensor] = vars(tx.output).setdefault("gradc_data", {})  # or others would get their ids
    source = AttrSource(variable.source, "data")
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
