"""Leaves that a function makes, by ``x.clone().requires_grad_()``, and unmakes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables.builtin import SetAttrBuiltinVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.tensor_methods import replace_tensor_method
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

FACTORIES = (
    torch.arange, torch.full, torch.linspace, torch.ones, torch.ones_like, torch.rand, torch.rand_like, torch.randn,
    torch.randn_like, torch.tensor, torch.zeros, torch.zeros_like,
)  # fmt: skip


def return_what_leaves_lead_to(is_ours: IsOurs, begins_with_leaves: Callable[[torch.fx.Graph], bool]) -> Patch:
    """Let a graph return what leads to a leaf that it makes, if ``begins_with_leaves`` says that all of them are made first."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def check(self: Any, returned: Any, tx: Any) -> None:
            if not is_ours(self.compiler_fn) or not begins_with_leaves(self.graph):
                original(self, returned, tx)

        return check

    return Patch(
        "return_what_leaves_lead_to",
        "Dynamo ends its graph at each requires_grad_() whose tensor leads to a result, since AOTAutograd forgets the leaf.",
        (Replace(OutputGraph, "_check_requires_grad_intermediate_outputs", make),),
    )


def make_leaves_in_graphs(is_ours: IsOurs) -> Patch:
    """Put ``torch.rand(3, requires_grad=True)`` and ``x.requires_grad = True`` into graphs, as ``requires_grad_()`` is."""

    def make_call(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            if self.value not in FACTORIES or not is_true(kwargs.get("requires_grad")) or not is_ours(tx.output.compiler_fn):
                return original(self, tx, args, kwargs)
            made = original(self, tx, args, {name: value for name, value in kwargs.items() if name != "requires_grad"})
            return made.method_requires_grad_(tx) if _can_be_leaf(made) else original(self, tx, args, kwargs)

        return call

    def make_set(original: Method) -> Method:
        @functools.wraps(original)
        def set_attribute(self: Any, tx: Any, obj: Any, name: Any, value: Any) -> Any:
            is_flag = name.is_python_constant() and name.as_python_constant() == "requires_grad"
            is_made = is_flag and is_true(value) and isinstance(obj, TensorVariable) and _can_be_leaf(obj)
            if is_made and is_ours(tx.output.compiler_fn):
                obj.method_requires_grad_(tx)
                return value
            return original(self, tx, obj, name, value)

        return set_attribute

    return Patch(
        "make_leaves_in_graphs",
        "Dynamo ends its graph at tensors that are made with requires_grad=True, or get it by assignment.",
        (
            Replace(TorchInGraphFunctionVariable, "call_function", make_call),
            Replace(SetAttrBuiltinVariable, "_call_setattr", make_set),
        ),
    )


def is_true(argument: Any) -> bool:
    return argument is not None and argument.is_python_constant() and argument.as_python_constant() is True


def _can_be_leaf(tensor: Any) -> bool:
    """Whether eager lets the tensor require a gradient, if it does not yet."""
    dtype = tensor.dtype
    is_new = not tensor.source and not tensor.requires_grad
    return is_new and dtype is not None and (dtype.is_floating_point or dtype.is_complex)


def unmake_leaves_eagerly(is_ours: IsOurs) -> Patch:
    """End the graph at ``requires_grad_(False)`` of what requires a gradient."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def method(self: Any, tx: Any, requires_grad: Any = True) -> Any:
            is_wanted = requires_grad if isinstance(requires_grad, bool) else requires_grad.as_python_constant()
            if is_ours(tx.output.compiler_fn) and not is_wanted and self.as_proxy().node.meta["example_value"].requires_grad:
                end_graph("requires_grad_(False)", "A graph has no call that makes a leaf one that requires no gradient.")
            return original(self, tx, requires_grad)

        return method

    return Patch(
        "unmake_leaves_eagerly",
        "Of requires_grad_(False) Dynamo leaves the False out: in its graph the tensor still requires a gradient.",
        replace_tensor_method("requires_grad_", make),
    )
