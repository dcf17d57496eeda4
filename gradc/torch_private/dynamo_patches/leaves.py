"""Leaves that a function makes, by ``x.clone().requires_grad_()``, and unmakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables.builtin import SetAttrBuiltinVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.tensor_methods import tensor_method
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before

FACTORIES = (
    torch.arange, torch.full, torch.linspace, torch.ones, torch.ones_like, torch.rand, torch.rand_like, torch.randn,
    torch.randn_like, torch.tensor, torch.zeros, torch.zeros_like,
)  # fmt: skip


def return_what_leaves_lead_to(begins_with_leaves: Callable[[torch.fx.Graph], bool]) -> Patch:
    """Let a graph return what leads to a leaf that it makes, if ``begins_with_leaves`` says that all of them are made first."""

    def check(original: Method, self: Any, rv: Any, tx: Any) -> None:
        if not begins_with_leaves(self.graph):
            original(self, rv, tx)

    return Patch(
        "return_what_leaves_lead_to",
        "Dynamo ends its graph at each requires_grad_() whose tensor leads to a result, since AOTAutograd forgets the leaf.",
        (around(OutputGraph, "_check_requires_grad_intermediate_outputs", check),),
    )


def make_leaves_in_graphs() -> Patch:
    """Put ``torch.rand(3, requires_grad=True)`` and ``x.requires_grad = True`` into graphs, as ``requires_grad_()`` is."""
    return Patch(
        "make_leaves_in_graphs",
        "Dynamo ends its graph at tensors that are made with requires_grad=True, or get it by assignment.",
        (
            around(TorchInGraphFunctionVariable, "call_function", _call),
            around(SetAttrBuiltinVariable, "_call_setattr", _set),
        ),
    )


def _call(original: Method, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value not in FACTORIES or not is_true(kwargs.get("requires_grad")):
        return original(self, tx, args, kwargs)
    made = original(self, tx, args, {name: value for name, value in kwargs.items() if name != "requires_grad"})
    return made.method_requires_grad_(tx) if _can_be_leaf(made) else original(self, tx, args, kwargs)


def _set(original: Method, self: Any, tx: Any, obj: Any, name_var: Any, val: Any) -> Any:
    is_flag = name_var.is_python_constant() and name_var.as_python_constant() == "requires_grad"
    if is_flag and is_true(val) and isinstance(obj, TensorVariable) and _can_be_leaf(obj):
        obj.method_requires_grad_(tx)
        return val
    return original(self, tx, obj, name_var, val)


def is_true(argument: Any) -> bool:
    return argument is not None and argument.is_python_constant() and argument.as_python_constant() is True


def _can_be_leaf(tensor: Any) -> bool:
    """Whether eager lets the tensor require a gradient, if it does not yet."""
    dtype = tensor.dtype
    is_new = not tensor.source and not tensor.requires_grad
    return is_new and dtype is not None and (dtype.is_floating_point or dtype.is_complex)


def unmake_leaves_eagerly() -> Patch:
    """End the graph at ``requires_grad_(False)`` of what requires a gradient."""
    return Patch(
        "unmake_leaves_eagerly",
        "Of requires_grad_(False) Dynamo leaves the False out: in its graph the tensor still requires a gradient.",
        tensor_method(before, "requires_grad_", _method),
    )


def _method(self: Any, tx: Any, requires_grad: Any = True) -> None:
    is_wanted = requires_grad if isinstance(requires_grad, bool) else requires_grad.as_python_constant()
    if not is_wanted and self.as_proxy().node.meta["example_value"].requires_grad:
        end_graph("requires_grad_(False)", "A graph has no call that makes a leaf one that requires no gradient.")
