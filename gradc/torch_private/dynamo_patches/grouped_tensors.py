"""Tensors by device and dtype, as ``clip_grad_norm_`` has them: in the order of torch's C++, not of Dynamo's Python for it."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace


def group_tensors_in_eagers_order(is_ours: IsOurs) -> Patch:
    """C++ has them as its hash table lays them out, the last mostly first. Norms of several dtypes add up in that order."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def group(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            groups = original(self, tx, *args, **kwargs)
            if is_ours(tx.output.compiler_fn):
                if not groups.items:
                    end_graph("no tensors to be grouped", "torch raises.")
                groups.items = type(groups.items)((key, groups.items[key]) for key in _in_eagers_order(groups.items))
            return groups

        return group

    return Patch(
        "group_tensors_in_eagers_order",
        "Dynamo groups tensors by device and dtype in another order than torch: the norm of gradients is added up otherwise.",
        (Replace(TorchInGraphFunctionVariable._get_handlers(), torch._C._group_tensors_by_device_and_dtype, make),),
    )


def _in_eagers_order(keys: Iterable[Any]) -> list[Any]:
    """Dynamo's keys, which stand for pairs of device and dtype, by what C++ makes of tensors without memory."""
    of_pair = {key.vt.as_python_constant(): key for key in keys}
    stand_ins: list[Any] = [torch.empty(0, device=device, dtype=dtype) for device, dtype in of_pair]
    return [of_pair[pair] for pair in torch._C._group_tensors_by_device_and_dtype([stand_ins], False)]
