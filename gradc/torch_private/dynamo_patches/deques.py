"""Tensors that are made of a ``collections.deque``: of its items, as of a list's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._dynamo.variables.base import ValueMutationNew
from torch._dynamo.variables.lists import DequeVariable, ListVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_MAKERS = (torch.tensor, torch.as_tensor)


def make_tensors_of_deques() -> Patch:
    """Hand the items to ``torch.tensor`` in a list: a graph takes no deque."""
    return Patch(
        "make_tensors_of_deques",
        "Dynamo breaks down where a tensor is made of a deque, and the whole function is left to Python.",
        (around(TorchInGraphFunctionVariable, "call_function", _call),),
    )


def _call(original: Method, self: Any, tx: Any, args: Sequence[Any], kwargs: Any) -> Any:
    if self.value in _MAKERS and args:
        data = args[0].realize()
        if isinstance(data, DequeVariable):
            args = [ListVariable([*data.items], mutation_type=ValueMutationNew()), *args[1:]]
    return original(self, tx, args, kwargs)
