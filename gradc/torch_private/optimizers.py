"""How torch's optimizers are put together: a ``step`` in layers around one function that does the arithmetic.

    functional_of: optimizer -> "adam", "sgd", ...: the function of torch.optim that its step calls; "" for another step
    step_of:       (optimizer, arithmetic) -> its ``step``, with ``arithmetic`` called in that function's place
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, _use_grad_for_differentiable

_OF_CLASS = {
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adam",
    torch.optim.SGD: "sgd",
    torch.optim.RMSprop: "rmsprop",
    torch.optim.Adagrad: "adagrad",
    torch.optim.Adadelta: "adadelta",
    torch.optim.Adamax: "adamax",
}
NAMES = tuple(kind.__name__ for kind in _OF_CLASS)


def functional_of(optimizer: Any) -> str:
    """See the module's docstring. A subclass has a step of its own, or may have: it is not one of torch's."""
    return _OF_CLASS.get(type(optimizer), "")


def step_of(optimizer: Optimizer, arithmetic: Callable[..., None]) -> Callable[..., Any]:
    """The bound ``step`` of ``optimizer``, with the same hooks and checks around, that calls ``arithmetic(original, ...)``.

    The function that ``step`` calls is a global of its module: the step is made anew with other globals, and torch's stays.
    """
    name = functional_of(optimizer)
    body = _innermost(type(optimizer).step)
    namespace = {**body.__globals__, name: functools.partial(arithmetic, body.__globals__[name])}
    copy = types.FunctionType(body.__code__, namespace, body.__name__, body.__defaults__, body.__closure__)
    functools.update_wrapper(copy, body)
    del copy.__wrapped__  # type: ignore[attr-defined]
    step = Optimizer.profile_hook_step(_use_grad_for_differentiable(copy))
    step.is_native = True  # type: ignore[attr-defined]
    return types.MethodType(step, optimizer)


def _innermost(function: Any) -> Any:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
