"""What torch takes of NumPy without calculating: arrays of integers as indices, and numbers.

    take_numpy_arguments: is_ours -> Patch

An array of int64 that is an index is the very memory that backward reads: what is written into it in between counts, in eager
and here. Of other integers torch makes a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch._dynamo.codegen import PyCodegen
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, CallMethodItemSource, NumpyTensorSource
from torch._dynamo.variables import builder
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.lists import TupleVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._guards import Source

from gradc.torch_private.dynamo_patches.opaque import NUMPY, OpaqueVariable
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, instead

_INDEXING = ("getitem", "setitem", "__getitem__", "__setitem__")
_INTEGERS = {numpy.dtype(code) for code in "bhilq"}  # of unsigned ones torch takes bytes for a mask


def take_numpy_arguments() -> Patch:
    """See the module's docstring."""
    return Patch(
        "take_numpy_arguments",
        "A minibatch that is taken by an array of indices, or a number of NumPy's, calculates nothing, and ended graphs.",
        (
            around(BuiltinVariable, "call_function", _builtin),
            around(TensorVariable, "call_method", _method),
            instead(CallMethodItemSource, "reconstruct", _reconstruct, may_be_missing=True),
        ),
    )


def _builtin(original: Method, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if len(args) > 1 and self.fn.__name__ in _INDEXING:
        args = _with_tensor_as_index(tx, args)
    return original(self, tx, args, kwargs)


def _method(original: Method, self: Any, tx: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
    if args and name in _INDEXING:
        args = _with_tensor_as_index(tx, [self, *args])[1:]
    return original(self, tx, name, args, kwargs)


def _reconstruct(self: Any, codegen: PyCodegen) -> None:
    """``x.item()``: Dynamo guards it only."""
    codegen(self.base)
    codegen.load_method("item")
    codegen.call_method(0)


def _with_tensor_as_index(tx: Any, args: Sequence[VariableTracker]) -> list[VariableTracker]:
    tensor, index = (each.realize() for each in args[:2])
    if not isinstance(tensor, TensorVariable):
        return [*args]
    if isinstance(index, TupleVariable):
        index = TupleVariable([_as_index(tx, item.realize()) for item in index.items])
    return [tensor, _as_index(tx, index), *args[2:]]


def _as_index(tx: Any, variable: VariableTracker) -> VariableTracker:
    if not isinstance(variable, OpaqueVariable) or variable.kind is not NUMPY or variable.source is None:
        return variable
    return _tensor_of(tx, variable.value, variable.source) if _is_index(variable.value) else variable


def _is_index(value: Any) -> bool:
    if type(value) is not numpy.ndarray or value.dtype not in _INTEGERS or value.ndim == 0:
        return False
    return value.flags.writeable and all(stride >= 0 for stride in value.strides)


def _tensor_of(tx: Any, array: Any, source: Source) -> VariableTracker:
    known: dict[Source, VariableTracker] = vars(tx.output).setdefault("gradc_indices", {})
    if source not in known:
        install_guard(AttrSource(AttrSource(source, "flags"), "writeable").make_guard(GuardBuilder.CONSTANT_MATCH))
        given = builder.VariableBuilder(tx, NumpyTensorSource(source))(torch.from_numpy(array)).realize()
        known[source] = given if array.dtype == numpy.int64 else given.call_method(tx, "long", [], {})
    return known[source]
