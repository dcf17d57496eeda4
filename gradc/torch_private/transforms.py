"""torch.func's transforms while a graph that enters them is recorded: what they forbid there, and whose tensors are theirs."""

from __future__ import annotations

from typing import Any

import torch

# torch.func.grad allows no saved-tensors hooks while it runs: those of the user's would get tensors of its own.
_SWITCH_HOOKS = (torch._C._autograd._saved_tensors_hooks_disable, torch._C._autograd._saved_tensors_hooks_enable)
_DIFFERENTIATE = torch._functorch.eager_transforms._autograd_grad

_ENTER_VMAP = torch._functorch.predispatch._vmap_increment_nesting
ADVICE_OF_VMAP = "There is a performance drop because we have not yet implemented the batching rule"

_DIFFERENTIATING = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)


def is_switch_of_hooks(function: Any) -> bool:
    return function in _SWITCH_HOOKS


def enters_vmap(function: Any) -> bool:
    return function is _ENTER_VMAP


def is_gradient_of_transform(function: Any) -> bool:
    """True for what torch.func's reverse-mode transforms call to run the engine at their own level."""
    return function is _DIFFERENTIATE


def is_in_transform(tensor: torch.Tensor) -> bool:
    """True for the wrappers of torch.func's transforms, around tensors of the level below."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def is_seen_wrapped(tensor: torch.Tensor) -> bool:
    """True for what a kernel called just now would get in a transform's wrapper: those that differentiate wrap all they get."""
    innermost = torch._C._functorch.peek_interpreter_stack()
    return is_in_transform(tensor) or (innermost is not None and innermost.key() in _DIFFERENTIATING)


def as_calls_see_it(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without the wrappers of transforms that have ended, which code that asks for wrappers sees all the same."""
    while (inner := torch._C._functorch.unwrap_if_dead(tensor)) is not tensor:
        tensor = inner
    return tensor


def without_transforms(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself that transforms have wrapped."""
    while is_in_transform(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor
