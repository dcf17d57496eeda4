"""Calls that Dynamo would rewrite, and that stay in gradc's graphs as the user wrote them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.dynamo_names import GETATTR
from gradc.torch_private.dynamo_patches.tensor_methods import tensor_method
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around, instead

_TAKEN_APART = (torch.addcdiv, torch.full, torch._foreach_lerp_, torch._foreach_pow, math.radians)
_METHODS_TAKEN_APART = ("add_", "addcmul_", "addcdiv_")


def keep_ops_whole() -> Patch:
    """Leave calls in graphs that Dynamo would make of other calls; their handlers answer None, as if there were none."""

    handlers = TorchInGraphFunctionVariable._get_handlers()
    return Patch(
        "keep_ops_whole",
        "Dynamo takes addcdiv, addcmul_ and the like apart, and rounds twice; it lets full take a tensor that eager refuses.",
        (
            *(instead(handlers, op, _call) for op in _TAKEN_APART),
            *(change for name in _METHODS_TAKEN_APART for change in tensor_method(instead, name, _call)),
        ),
    )


def _call(*_: Any, **__: Any) -> None:
    """As if there were no handler."""


def keep_views_in_graphs() -> Patch:
    """Record ``x.mT`` and the like as calls."""
    return Patch(
        "keep_views_in_graphs",
        "What is only returned Dynamo reads from x once more behind the graph: when another grad mode may be on than was.",
        (after(TensorVariable, GETATTR, _read),),
    )


def _read(result: Any, self: Any, tx: Any, name: str) -> Any:
    if name in ("T", "mT", "H", "mH", "real", "imag"):
        result.source = None
    return result


def unpack_whole_tensors() -> Patch:
    """Unpack and iterate over a tensor by one ``unbind``, as eager does."""
    return Patch(
        "unpack_whole_tensors",
        "Dynamo takes one select for each row, whose gradients are then added up: more work, and a -0 becomes 0.",
        (around(TensorVariable, "unpack_var_sequence", _unpack),),
    )


def _unpack(original: Method, self: Any, tx: Any, idxes: Any = None) -> Any:
    if type(self) is not TensorVariable:
        return original(self, tx, idxes)
    rows = self.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)
    return rows if idxes is None or len(idxes) == len(rows) else original(self, tx, idxes)
