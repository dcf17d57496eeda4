"""Where Dynamo's graphs end for gradc: at what has to be called as eager calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.source import FloatTensorSource
from torch._dynamo.trace_rules import is_callable_allowed
from torch._dynamo.variables import builder
from torch._dynamo.variables.higher_order_ops import CheckpointHigherOrderVariable
from torch._dynamo.variables.misc import AutogradFunctionVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.tensor_methods import tensor_method
from gradc.torch_private.fakes import is_fake
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.plain_functions import is_plain
from gradc.torch_private.weaver import after, around, before, instead

_KNOWN = ("torch.", "einops")  # of the functions that Dynamo takes for opaque: those that it marks by itself


def break_graph_where_eager_is_needed() -> Patch:
    """Make Dynamo end its graph at autograd.Function, checkpoint and hooks.

    Dynamo has operators of its own for the first two. That for a Function forgets ``set_materialize_grads`` and the Python
    state that backward reads; that for checkpoint leaves recomputation to a partitioner. Hooks it registers behind the graph,
    when a tensor may have been written into. Called eagerly, all do what they do. Under ``fullgraph=True`` checkpoint and
    hooks stay in the graph, and plain Functions; others raise, with this reason.
    """

    function = _breaking(
        "autograd.Function",
        "gradc runs autograd.Function as eager does: what it does in backward is known only then.",
        stays=lambda variable: is_plain(variable.fn_cls),
    )
    checkpoint = _breaking(
        "checkpoint",
        "gradc runs torch.utils.checkpoint as eager does; the function inside it is compiled by itself.",
    )
    hook = _breaking("hook", "gradc registers hooks as eager does, between what comes before and what comes after.")
    return Patch(
        "break_graph_where_eager_is_needed",
        "Dynamo's own forms of autograd.Function, checkpoint and tensor hooks are not eager's.",
        (
            before(AutogradFunctionVariable, "call_apply", function),
            before(CheckpointHigherOrderVariable, "_call_function", checkpoint),
            before(TensorVariable, "_method_register_hook", hook),
        ),
    )


def _breaking(name: str, explanation: str, stays: Callable[[Any], bool] = lambda _: True) -> Method:
    def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
        if not (tx.one_graph and stays(self)):
            end_graph(name, explanation, self)

    return call


def break_graph_at_opaque_functions() -> Patch:
    """Make Dynamo end its graph at what ``torch.compiler.allow_in_graph`` and ``torch._dynamo.nonstrict_trace`` mark.

    Dynamo puts such a function into its graph and looks at nothing inside: a Program is made of the ops that it called once,
    and knows no state that it reads. Under ``fullgraph=True`` it stays in the graph, which is what the marks are for. So do the
    functions of einops, which Dynamo marks by itself: they read no state. An autograd.Function is as one without a mark.
    """
    return Patch(
        "break_graph_at_opaque_functions",
        "Of a function that is marked as opaque a Program has the ops of its first call, whatever it reads or does at others.",
        (
            before(TorchInGraphFunctionVariable, "call_function", _call_of_function),
            around(AutogradFunctionVariable, "call_method", _method),
        ),
    )


def _call_of_function(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    if _is_opaque(self.value) and not tx.one_graph:
        end_graph("opaque function", "gradc calls it as eager does: it may read what no graph knows.", self.value)


def _method(original: Method, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name == "apply" and is_callable_allowed(self.fn_cls):
        return self.call_apply(tx, args, kwargs)
    return original(self, tx, name, args, kwargs)


def _is_opaque(function: Any) -> bool:
    return is_callable_allowed(function) and not str(getattr(function, "__module__", "")).startswith(_KNOWN)


def break_graph_at_methods_of_what_is_no_tensor() -> Patch:
    """Make Dynamo end its graph at ``torch.Tensor.__radd__(2, x)``, which raises in eager: nothing is found at an int."""
    return Patch(
        "break_graph_at_methods_of_what_is_no_tensor",
        "Dynamo calls the method that the number has, and where nobody uses the result nothing raises.",
        (before(TorchInGraphFunctionVariable, "call_function", _call_of_method),),
    )


def _call_of_method(self: Any, tx: Any, args: Any, kwargs: Any) -> None:
    is_method = getattr(self.value, "__objclass__", None) is torch._C.TensorBase
    if is_method and args and args[0].is_python_constant() and not tx.one_graph:
        end_graph("method of a tensor", "gradc calls it on what is no tensor as eager does: eager raises.", self.value)


def break_graph_where_values_are_read() -> Patch:
    """Make Dynamo end its graph at an op that reads the value of an argument.

    It does so by itself, but for a number that the graph takes as a tensor of no dimensions: of that it has a symbol, and would
    go on with ``torch.narrow(x, 0, start, 2)``. Fake tensors alone know no values, so that graph would run eagerly as a whole.
    The tensors that Dynamo makes of Python's floats keep their symbols. And ``istft`` it runs in a form that reads no value,
    where eager's asks whether the window is zero anywhere. Under ``fullgraph=True`` they stay in it, and that is refused.
    """
    return Patch(
        "break_graph_where_values_are_read",
        "Of numbers in tensors Dynamo has symbols, of istft a form that reads none; a graph of fake tensors knows no value.",
        (
            after(builder, "wrap_to_fake_tensor_and_record", _wrap),
            instead(TorchInGraphFunctionVariable._get_handlers(), torch.istft, _istft, may_be_missing=True),
            *tensor_method(instead, "istft", _istft),
        ),
    )


def _wrap(fake: Any, e: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    is_float = isinstance(kwargs.get("source"), FloatTensorSource)
    if is_fake(fake) and not is_float and not tx.one_graph:
        fake.item_memo = None
    return fake


def _istft(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    """None: as if there were no handler."""
    if not tx.one_graph:
        end_graph("op that reads values", "gradc runs istft as eager does: it looks at the window's values.", "istft")
