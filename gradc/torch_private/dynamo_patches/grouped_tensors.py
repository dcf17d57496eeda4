"""Tensors by device and dtype, as ``clip_grad_norm_`` has them: in the order of torch's C++, not of Dynamo's Python for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import after


def group_tensors_in_eagers_order() -> Patch:
    """C++ has them as its hash table lays them out, the last mostly first. Norms of several dtypes add up in that order."""
    return Patch(
        "group_tensors_in_eagers_order",
        "Dynamo groups tensors by device and dtype in another order than torch: the norm of gradients is added up otherwise.",
        (after(TorchInGraphFunctionVariable._get_handlers(), torch._C._group_tensors_by_device_and_dtype, _group),),
    )


def _group(groups: Any, _: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    if not groups.items:
        end_graph("no tensors to be grouped", "torch raises.")
    groups.items = type(groups.items)((key, groups.items[key]) for key in _in_eagers_order(groups.items))
    return groups


def _in_eagers_order(keys: Iterable[Any]) -> list[Any]:
    """Dynamo's keys, which stand for pairs of device and dtype, by what C++ makes of tensors without memory."""
    of_pair = {key.vt.as_python_constant(): key for key in keys}
    stand_ins: list[Any] = [torch.empty(0, device=device, dtype=dtype) for device, dtype in of_pair]
    return [of_pair[pair] for pair in torch._C._group_tensors_by_device_and_dtype([stand_ins], False)]
