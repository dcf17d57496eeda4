"""``p.add_(g, alpha=rate)`` with a tensor for the number: one op of gradc's, which reads the number when it is called.

    take_numbers_in_tensors: is_ours -> Patch

A graph of Dynamo's ends where a number is read from a tensor; and ``p + g * rate`` rounds otherwise. So the op makes torch's
own call, with the number. It has no derivative: where gradients are recorded the graph ends as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import wrap_fx_proxy
from torch._dynamo.variables.tensor import TensorVariable

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_NAMED = {"add": "alpha", "sub": "alpha", "addcmul": "value", "addcdiv": "value"}  # method: the name of its number
_library = torch.library.Library("gradc_numbers", "DEF")


def _define(name: str, number: str) -> None:
    others = "Tensor other" if number == "alpha" else "Tensor first, Tensor second"

    def call(method: str, number_of: Any, *tensors: torch.Tensor) -> Any:
        *operands, value = tensors
        return getattr(operands[0], method)(*operands[1:], **{number: number_of(value)})

    for method, schema in (
        (name, f"{name}(Tensor self, {others}, Tensor {number}) -> Tensor"),
        (f"{name}_", f"{name}_(Tensor(a!) self, {others}, Tensor {number}) -> ()"),
    ):
        returns = method == name

        def kernel(*tensors: torch.Tensor, method: str = method, returns: bool = returns) -> Any:
            result = call(method, torch.Tensor.item, *tensors)
            return result if returns else None

        def fake(*tensors: torch.Tensor, method: str = method, returns: bool = returns) -> Any:
            result = call(method, _any_number_like, *tensors)
            if not returns:
                torch.autograd.graph.increment_version(tensors[0])  # as a call above autograd does
            return result if returns else None

        _library.define(schema)
        _library.impl(method, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"gradc_numbers::{method}", fake, lib=_library)


def _any_number_like(tensor: torch.Tensor) -> int | float | bool | complex:
    if tensor.dtype.is_complex:
        return 1j
    if tensor.dtype.is_floating_point:
        return 0.5
    return True if tensor.dtype is torch.bool else 1


for _name, _number in _NAMED.items():
    _define(_name, _number)


def take_numbers_in_tensors() -> Patch:
    """See the module's docstring."""
    return Patch(
        "take_numbers_in_tensors",
        "An optimizer of one's own that keeps its rate in a tensor ended its graph at each update.",
        (around(TensorVariable, "call_method", _call_method),),
    )


def _call_method(original: Method, self: Any, tx: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    number = _NAMED.get(name.removesuffix("_"))
    if number is None or set(kwargs) != {number}:
        return original(self, tx, name, args, kwargs)
    tensors = [each.realize() for each in (self, *args, kwargs[number])]
    if not _is_taken(tensors, 3 if number == "alpha" else 4):
        return original(self, tx, name, args, kwargs)
    op = getattr(torch.ops.gradc_numbers, name).default
    result = wrap_fx_proxy(tx, tx.output.create_proxy("call_function", op, tuple(x.as_proxy() for x in tensors), {}))
    return self if name.endswith("_") else result


def _is_taken(tensors: Sequence[VariableTracker], count: int) -> bool:
    """Whether all are tensors, the last holds one number, and no gradient is recorded."""
    if len(tensors) != count or not all(type(each) is TensorVariable for each in tensors):
        return False
    traced = [each.as_proxy().node.meta.get("example_value") for each in tensors]
    if not all(isinstance(each, torch.Tensor) for each in traced) or torch.is_autocast_enabled("cpu"):
        return False
    number = traced[-1]
    records = torch.is_grad_enabled() and any(each.requires_grad for each in traced)
    return number.ndim == 0 and not number.requires_grad and not records
