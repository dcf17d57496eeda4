"""Whether two tensors are one object: what Dynamo tells of one by another name is what eager would.

``x.float()`` of float32 is ``x``, as ``x.add_(1)`` is: what is done to it, a hook or an attribute, is done to ``x``.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._C import DispatchKey
from torch._dynamo.variables import builder
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import FakeIdVariable
from torch._dynamo.variables.tensor import TensorVariable

from gradc.torch_private.dynamo_names import IS_BEFORE_2_14
from gradc.torch_private.ours import is_compiling_for_gradc
from gradc.torch_private.patches import Method, Patch, Replace
from gradc.torch_private.weaver import after, around

_CALLS = ("call_function", "call_method")
_KNOWN = "gradc_tensors"  # of a graph that is traced: a graph and the id of a tensor's stand-in -> the tensor's first variable
_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


def tell_tensors_apart() -> Patch:
    """An op that returns its argument returns the same tensor, as does dropout that drops nothing.

    A graph's tensor that is made within has no address yet: its ``id`` is one that nothing else has, unless it is an argument.
    """

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
        "In Dynamo x.contiguous() and x are two, with attributes and an id each, and dropout that drops nothing returns a copy "
        "before torch 2.14.",
        (
            after(builder, "wrap_fx_proxy_cls", _wrap),
            around(BuiltinVariable, "call_id", _id),
            *(Replace(kernels, key, make_dropout) for key in _KEYS if IS_BEFORE_2_14),
        ),
    )


def _wrap(made: Any, target_cls: type, tx: Any, proxy: Any, example_value: Any = None, *args: Any, **kwargs: Any) -> Any:
    if type(made) is not TensorVariable:
        return made
    known = vars(tx.output).setdefault(_KNOWN, {})
    name = proxy.node.graph, id(_fake_of(made))
    first = known.get(name) if proxy.node.op in _CALLS else None
    if first is None or _fake_of(first) is not _fake_of(made):
        known[name] = made
        return made
    first.synchronize_attributes(tx)
    return first


def _id(original: Method, self: Any, tx: Any, *args: Any) -> Any:
    is_made_within = len(args) == 1 and isinstance(args[0], TensorVariable) and not args[0].source
    if not is_made_within:
        return original(self, tx, *args)
    fake = _fake_of(args[0])
    given = (other for other in tx.output.input_source_to_var.values() if isinstance(other, TensorVariable))
    same = next((other for other in given if _fake_of(other) is fake), None)
    return original(self, tx, same) if same is not None else FakeIdVariable(id(fake))


def _fake_of(tensor: TensorVariable) -> Any:
    return tensor.as_proxy().node.meta.get("example_value")
