"""Tensors with a class that has no code of its own: Dynamo traces calls on their data, and gives results the class at the end.

In eager each result is a view of what the call made, so that to write into one makes other nodes: that ends the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.variables.builder import wrap_fx_proxy
from torch._dynamo.variables.lists import TupleVariable
from torch._dynamo.variables.torch_function import TensorWithTFOverrideVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.tensor_methods import tensor_method
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before


def take_data_of_subclasses() -> Patch:
    """Let ``x.as_subclass(torch.Tensor)`` be the view that eager makes, which no ``__torch_function__`` sees."""
    return Patch(
        "take_data_of_subclasses",
        "Code that takes the data of a tensor with a class of its own does so around every calculation.",
        (
            *tensor_method(around, "as_subclass", _as_subclass),
            around(TensorWithTFOverrideVariable, "call_method", _call),
            before(TensorWithTFOverrideVariable, "call_torch_function", _function),
        ),
    )


def _as_subclass(original: Method, self: Any, tx: Any, cls: Any) -> Any:
    if getattr(cls.realize(), "value", None) is not torch.Tensor:
        return original(self, tx, cls)
    return wrap_fx_proxy(tx, tx.output.create_proxy("call_function", torch.ops.aten.alias.default, (self.as_proxy(),), {}))


def _call(original: Method, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name == "as_subclass" and len(args) == 1 and not kwargs:
        return self.method_as_subclass(tx, args[0])
    return original(self, tx, name, args, kwargs)


def _function(self: Any, tx: Any, fn: Any, types: Any, args: Any, kwargs: Any) -> None:
    if _writes(getattr(fn, "value", None), kwargs):
        end_graph("write into a tensor subclass", "In eager it is a view of what the class was given to.")


def with_class_of(tx: Any, arguments: Sequence[Any], results: Any) -> Any:
    """What ``torch.Tensor.__torch_function__`` makes of the tensors in a tuple that a call with these arguments returned."""
    classed = {each.class_type: each for each in arguments if isinstance(each, TensorWithTFOverrideVariable)}
    if not classed:
        return results
    if len(classed) > 1:
        end_graph("tensor subclasses", "Python chooses which class the results get.")
    (first,) = classed.values()
    kind = first.class_type_var(tx)
    return TupleVariable([each.method_as_subclass(tx, kind) if each.is_tensor() else each for each in results.items])


def _writes(function: Any, kwargs: Mapping[str, Any]) -> bool:
    name, inplace = getattr(function, "__name__", ""), kwargs.get("inplace")
    is_inplace = inplace is not None and not (inplace.is_python_constant() and not inplace.as_python_constant())
    return name == "__setitem__" or (name.endswith("_") and not name.startswith("_")) or "out" in kwargs or is_inplace
