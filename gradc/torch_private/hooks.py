"""The dictionaries in which torch keeps hooks that are registered: by the number of the handle, in the order of their calls.

A hook that is replaced in its dictionary is replaced for all that come to call it, the engine of autograd too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Hooks = dict[int, Callable[..., Any]]


def on_gradient(tensor: torch.Tensor) -> Hooks:
    return tensor._backward_hooks or {}


def behind_gradient(leaf: torch.Tensor) -> Hooks:
    """Called when its gradient has been accumulated."""
    return leaf._post_accumulate_grad_hooks or {}


def before_backward(module: torch.nn.Module) -> Hooks:
    return module._backward_pre_hooks


def on_backward(module: torch.nn.Module) -> Hooks:
    return module._backward_hooks


def before_step(optimizer: torch.optim.Optimizer) -> Hooks:
    return optimizer._optimizer_step_pre_hooks


def after_step(optimizer: torch.optim.Optimizer) -> Hooks:
    return optimizer._optimizer_step_post_hooks
