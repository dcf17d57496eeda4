"""Calls that Dynamo would rewrite, and that stay in gradc's graphs as the user wrote them."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.dynamo_names import GETATTR
from gradc.torch_private.dynamo_patches.tensor_methods import replace_tensor_method
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

_TAKEN_APART = (torch.addcdiv, torch.full, torch._foreach_lerp_, torch._foreach_pow, math.radians)
_METHODS_TAKEN_APART = ("add_", "addcmul_", "addcdiv_")


def keep_ops_whole(is_ours: IsOurs) -> Patch:
    """Leave calls in graphs that Dynamo would make of other calls; their handlers answer None, as if there were none."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            return None if is_ours(tx.output.compiler_fn) else original(self, tx, *args, **kwargs)

        return call

    handlers = TorchInGraphFunctionVariable._get_handlers()
    return Patch(
        "keep_ops_whole",
        "Dynamo takes addcdiv, addcmul_ and the like apart, and rounds twice; it lets full take a tensor that eager refuses.",
        (
            *(Replace(handlers, op, make) for op in _TAKEN_APART),
            *(change for name in _METHODS_TAKEN_APART for change in replace_tensor_method(name, make)),
        ),
    )


def keep_views_in_graphs(is_ours: IsOurs) -> Patch:
    """Record ``x.mT`` and the like as calls."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def read(self: Any, tx: Any, name: str) -> Any:
            result = original(self, tx, name)
            if name in ("T", "mT", "H", "mH", "real", "imag") and is_ours(tx.output.compiler_fn):
                result.source = None
            return result

        return read

    return Patch(
        "keep_views_in_graphs",
        "What is only returned Dynamo reads from x once more behind the graph: when another grad mode may be on than was.",
        (Replace(TensorVariable, GETATTR, make),),
    )


def unpack_whole_tensors(is_ours: IsOurs) -> Patch:
    """Unpack and iterate over a tensor by one ``unbind``, as eager does."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def unpack(self: Any, tx: Any, idxes: Any = None) -> Any:
            if type(self) is not TensorVariable or not is_ours(tx.output.compiler_fn):
                return original(self, tx, idxes)
            rows = self.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)
            return rows if idxes is None or len(idxes) == len(rows) else original(self, tx, idxes)

        return unpack

    return Patch(
        "unpack_whole_tensors",
        "Dynamo takes one select for each row, whose gradients are then added up: more work, and a -0 becomes 0.",
        (Replace(TensorVariable, "unpack_var_sequence", make),),
    )
