"""Whether two tensors are one object: ``is`` and ``id`` tell Dynamo's what they would tell eager's."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._C import DispatchKey
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import FakeIdVariable
from torch._dynamo.variables.tensor import TensorVariable

from gradc.torch_private.dynamo_names import IS_BEFORE_2_14
from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


def tell_tensors_apart(is_ours: IsOurs) -> Patch:
    """An op that returns its argument returns the same tensor: for ``id``, and dropout that drops nothing for ``is``, too.

    A graph's tensor that is made within has no address yet: its ``id`` is one that nothing else has, unless it is an argument.
    """

    def make_id(original: Method) -> Method:
        @functools.wraps(original)
        def call_id(self: Any, tx: Any, *args: Any) -> Any:
            is_made_within = len(args) == 1 and isinstance(args[0], TensorVariable) and not args[0].source
            if not is_made_within or not is_ours(tx.output.compiler_fn):
                return original(self, tx, *args)
            fake = _fake_of(args[0])
            given = (other for other in tx.output.input_source_to_var.values() if isinstance(other, TensorVariable))
            same = next((other for other in given if _fake_of(other) is fake), None)
            return original(self, tx, same) if same is not None else FakeIdVariable(id(fake))

        return call_id

    def make_dropout(original: Method) -> Method:
        @functools.wraps(original)
        def dropout(input: torch.Tensor, p: float, train: bool | None) -> torch.Tensor:
            drops = train and p != 0
            return original(input, p, train) if drops or not is_compiling_for_gradc() else input

        torch.ops.aten.dropout.default._dispatch_cache.clear()  # or the original is called
        return dropout

    kernels = torch.ops.aten.dropout.default.py_kernels
    return Patch(
        "tell_tensors_apart",
        "In Dynamo x.contiguous() has another id than x, and dropout that drops nothing returns a copy before torch 2.14.",
        (
            Replace(BuiltinVariable, "call_id", make_id),
            *(Replace(kernels, key, make_dropout) for key in _KEYS if IS_BEFORE_2_14),
        ),
    )


def _fake_of(tensor: TensorVariable) -> Any:
    return tensor.as_proxy().node.meta.get("example_value")
