"""Subclasses of torch.Tensor: those that have a name and attributes only, and those that run code of their own in calls."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from gradc.torch_private.fakes import FakeTensor

# Fake ones are torch's own, while it traces; the others are about to become parameters, which Dynamo sees to.
_OF_TORCH = (FakeTensor, FunctionalTensor, UninitializedParameter, UninitializedBuffer)
_DEFAULTS = (torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)  # type: ignore[attr-defined]


def is_subclass(value: Any) -> bool:
    """True for a tensor whose class is none of torch's usual ones."""
    return isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def runs_code_of_its_own(value: Any) -> bool:
    """True for a tensor whose class has its own ``__torch_function__`` or ``__torch_dispatch__``."""
    kind: Any = type(value)
    return is_subclass(value) and not isinstance(value, _OF_TORCH) and _has_code(kind)


@functools.cache
def _has_code(kind: Any) -> bool:
    function: Any = kind.__torch_function__
    is_default = getattr(function, "__func__", function) in _DEFAULTS
    return not is_default or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
