"""How torch's optimizers are put together: a ``step`` in layers around one function that does the arithmetic.

    known_steps: () -> {the step of a class, without hooks: "adam", "sgd", ...: the function of torch.optim that it calls}
    step_of:     optimizer -> the step of its class, without hooks
    step_with:   (step without hooks, name, arithmetic) -> a step with hooks that calls ``arithmetic`` in that function's place
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, _use_grad_for_differentiable

Step = Callable[..., Any]
Closure = Callable[[], Any]

_OF_CLASS = {
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adam",
    torch.optim.NAdam: "nadam",
    torch.optim.RAdam: "radam",
    torch.optim.SGD: "sgd",
    torch.optim.RMSprop: "rmsprop",
    torch.optim.Adagrad: "adagrad",
    torch.optim.Adadelta: "adadelta",
    torch.optim.Adamax: "adamax",
}
NAMES = tuple(kind.__name__ for kind in _OF_CLASS)

HOOKED = Optimizer.profile_hook_step(lambda: None).__code__  # of the layer that runs the hooks, around each step as ``func``
_NO_GRAD = _use_grad_for_differentiable(lambda: None).__code__


@functools.cache
def known_steps() -> dict[Step, str]:
    """See the module's docstring. A step that somebody has replaced is not among them."""
    steps = ((_without_hooks(vars(kind)["step"]), name) for kind, name in _OF_CLASS.items() if "step" in vars(kind))
    return {step: name for step, name in steps if step.__code__ is _NO_GRAD}


def step_of(optimizer: Optimizer) -> Step:
    """See the module's docstring."""
    return _without_hooks(type(optimizer).step)


def step_with(step: Step, name: str, arithmetic: Callable[..., None], around_closure: Callable[[Closure], Closure]) -> Step:
    """``step``, with its hooks and checks around, that calls ``arithmetic(original, ...)``.

    A closure is called as what ``around_closure`` makes of it. The function that ``step`` calls is a global of its module: the
    step is made anew with other globals, and torch's stays.
    """
    body = _innermost(step)
    namespace = {**body.__globals__, name: functools.partial(arithmetic, body.__globals__[name])}
    copy = types.FunctionType(body.__code__, namespace, body.__name__, body.__defaults__, body.__closure__)

    @functools.wraps(body)
    def with_closure(self: Any, closure: Closure | None = None) -> Any:
        return copy(self) if closure is None else copy(self, around_closure(closure))

    del with_closure.__wrapped__
    return Optimizer.profile_hook_step(_use_grad_for_differentiable(with_closure))


def _without_hooks(function: Any) -> Step:
    return function.__wrapped__ if function.__code__ is HOOKED else function


def _innermost(function: Any) -> Any:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
