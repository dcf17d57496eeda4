"""How torch's optimizers are put together: a ``step`` in layers around one function that does the arithmetic.

known_steps: () -> {the step of a class, without hooks: "adam", "sgd", ...: the function of torch.optim that it calls}
step_of:     optimizer -> the step of its class, without hooks
step_with:   (step without hooks, name, arithmetic, ...) -> a step with hooks that calls ``arithmetic`` instead
zero_grad_of_torch: (optimizer, set_to_none) -> None, as Optimizer.zero_grad, which Dynamo does not look into
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import types
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    _use_grad_for_differentiable,
)

Step = Callable[..., Any]
Closure = Callable[[], Any]


class Quick(Protocol):
    """Does what a method of optimizers does, without Python, where all is as usual."""

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> bool:
        """The method called with these. True if it is done; False if all is still to do."""

    def method(self, name: str, function: Any, otherwise: Callable[[Any], Any], /) -> Callable[[Any], Any]:
        """A builtin function of an optimizer: as ``run`` where ``optimizer.name()`` calls the class's ``function``, or else
        ``otherwise``."""


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

NOT_LOOKED_INTO = torch._disable_dynamo(lambda: None).__code__  # of what hides a function from Dynamo, the function as ``fn``
_ZERO_GRAD = Optimizer.zero_grad
ZERO_GRAD = inspect.unwrap(_ZERO_GRAD)
zero_grad_of_torch = torch._disable_dynamo(ZERO_GRAD)
GRAD = vars(torch._C.TensorBase)["grad"]


@functools.cache
def known_steps() -> dict[Step, str]:
    """See the module's docstring. A step that somebody has replaced is not among them."""
    steps = ((_without_hooks(vars(kind)["step"]), name) for kind, name in _OF_CLASS.items() if "step" in vars(kind))
    return {step: name for step, name in steps if step.__code__ is _NO_GRAD}


def step_of(optimizer: Optimizer) -> Step:
    """See the module's docstring."""
    return _without_hooks(type(optimizer).step)


def step_with(
    step: Step,
    name: str,
    arithmetic: Callable[..., None],
    around_closure: Callable[[Closure], Closure],
    is_observed: Callable[[], bool],
    update_first: Callable[[Any], int] | None,
    quick: Quick | None,
) -> Step:
    """``step``, with its hooks and checks around, that calls ``arithmetic(original, ...)``.

    The function that ``step`` calls is a global of its module: the step is made anew with other globals, and torch's stays. A
    closure is called as what ``around_closure`` makes of it; ``is_observed`` tells whether a profiler is to hear of the step.
    With ``update_first`` the arithmetic finds a Group in the list of the parameters, and has to take it out. Where neither a
    closure, hooks nor a profiler need more, ``update_first`` updates groups of an optimizer before: as many as it returns.
    ``quick`` is for whoever calls the step, to be run before: see ``quick_of``.
    """
    body = _innermost(step)
    namespace = {**body.__globals__, name: functools.partial(arithmetic, body.__globals__[name])}
    copy = types.FunctionType(body.__code__, namespace, body.__name__, body.__defaults__, body.__closure__)

    @functools.wraps(body)
    def with_closure(self: Any, closure: Closure | None = None, *, groups: list[Any] | None = None) -> Any:
        own = _Unread(self, name, groups) if update_first and _is_read_by_torch(self) else self
        return copy(own) if closure is None else copy(own, around_closure(closure))

    del with_closure.__wrapped__
    with_hooks = _with_hooks(_use_grad_for_differentiable(with_closure), is_observed, update_first)
    with_hooks._quick = quick  # type: ignore[attr-defined]
    return with_hooks


def quick_of(step: Step) -> Quick | None:
    """What does all of a native step's work at once, if it is as usual."""
    quick: Quick | None = getattr(step, "_quick", None)
    return quick


def without_hooks(step: Any) -> Step | None:
    """The step of a class, as that has it, without the layer that runs hooks; None for what has no such layer."""
    return step.__wrapped__ if getattr(step, "__code__", None) is HOOKED else None


def has_zero_grad_of_torch(optimizer: Optimizer) -> bool:
    """True if its class's zero_grad is torch's own, which nobody has replaced."""
    return type(optimizer).zero_grad is _ZERO_GRAD and _ZERO_GRAD.__code__ is NOT_LOOKED_INTO


def is_zero_grad(function: Any) -> bool:
    """True for torch's own zero_grad, under whatever layers."""
    return inspect.unwrap(function) is ZERO_GRAD


def is_named_for_profilers(optimizer: Optimizer) -> bool:
    """False for an optimizer that torch's zero_grad completes first."""
    return hasattr(optimizer, "_zero_grad_profile_name") and type(optimizer.defaults) is dict


def has_usual_gradients() -> bool:
    """True unless somebody has put something else in place of ``Tensor.grad``."""
    return torch.Tensor.grad is GRAD and torch.nn.Parameter.grad is GRAD


def is_seen_by_schedules(optimizer: Optimizer) -> bool:
    """True if a learning-rate schedule has put its own function around ``optimizer.step``, which notes each step."""
    return hasattr(optimizer.step, "_wrapped_by_lr_sched")


def has_step_of_its_class(optimizer: Optimizer) -> bool:
    """True if nobody has given this optimizer another step than its class's, but for a schedule that notes each."""
    own = vars(optimizer).get("step")
    return own is None or (is_seen_by_schedules(optimizer) and getattr(own, "__wrapped__", None) is type(optimizer).step)


_OF_ATTRIBUTES = ("__getstate__", "__reduce__", "__reduce_ex__", "__setattr__", "__delattr__")


def may_have_methods_of_its_own(optimizer: Optimizer) -> bool:
    """True if an attribute is set as ever, and a copy is of what torch copies, without it."""
    return all(getattr(type(optimizer), name) is getattr(Optimizer, name) for name in _OF_ATTRIBUTES)


def seen_by_schedules(step: Step) -> Step:
    """``step`` with what a learning-rate schedule puts around: without, it warns that it comes before the first step."""

    @functools.wraps(step)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._opt_called = True
        return step(self, *args, **kwargs)

    call._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return call


@dataclasses.dataclass(frozen=True)
class Group:
    """A parameter group that torch has not read: the lists are empty, but for the first, where it lies itself."""

    optimizer: Any
    name: str
    settings: dict[str, Any]
    lists: tuple[list[Any], ...]

    @property
    def params(self) -> list[Any]:
        params: list[Any] = self.settings["params"]
        return params

    @property
    def state(self) -> dict[Any, Any]:
        state: dict[Any, Any] = self.optimizer.state
        return state

    def read(self) -> dict[str, Any]:
        """Let torch fill the lists. Returns what it found out about the parameters, by the name of the argument."""
        found = self.optimizer._init_group(self.settings, *self.lists)
        return dict(zip(_FOUND.get(self.name, ("has_complex",)), found if isinstance(found, tuple) else (found,), strict=True))


_FOUND = {"sgd": ("has_sparse_grad",), "adagrad": ("has_sparse_grad", "has_complex")}


class _Unread:
    """Stands for an optimizer in its own ``step``, which is to leave parameter groups unread: ``groups``, or all."""

    def __init__(self, optimizer: Any, name: str, groups: list[Any] | None) -> None:
        self._optimizer, self._name = optimizer, name
        if groups is not None:
            self.param_groups = groups

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._optimizer, attribute)

    def _init_group(self, group: dict[str, Any], *lists: list[Any]) -> Any:
        lists[0].append(Group(self._optimizer, self._name, group, lists))
        return (False, False) if self._name == "adagrad" else False


def _is_read_by_torch(optimizer: Any) -> bool:
    """True if nobody has put another ``_init_group`` in place of torch's."""
    return _reader_of(type(optimizer)) in _READERS and "_init_group" not in vars(optimizer)


def depends_on_groups_alone(optimizer: Any) -> bool:
    """True if the step of an optimizer of torch's, not of a subclass, does nothing but update each group by its settings.

    Some ask an accelerator whether it captures a graph (``asks_whether_captured``): who leaves such a step out has to ask, too.
    """
    return (
        type(optimizer) in _OF_CLASS
        and _reader_of(type(optimizer)) in _READERS
        and vars(optimizer).keys().isdisjoint(DECIDE)
        and optimizer.defaults.get("differentiable") is False
    )


def asks_whether_captured(step: Step) -> bool:
    """True for a step that refuses to be captured in an accelerator's graph without ``capturable``."""
    return "_accelerator_graph_capture_health_check" in _innermost(step).__code__.co_names


def _reader_of(kind: Any) -> Any:
    """The ``_init_group`` of a class, without the layer that Dynamo puts around when it compiles for the first time."""
    reader = kind._init_group
    code = getattr(reader, "__code__", None)
    return reader.__wrapped__ if code is not None and code.co_filename == _DYNAMO else reader


_DYNAMO = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "eval_frame.py")
_READERS = {_reader_of(kind) for kind in _OF_CLASS}
DECIDE = ("_init_group", "_accelerator_graph_capture_health_check", "grad_scale", "found_inf")  # an optimizer's own attributes
HOOKS_OF_ALL: tuple[dict[Any, Any], ...] = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)


def _with_hooks(step: Step, is_observed: Callable[[], bool], update_first: Callable[[Any], int] | None) -> Step:
    """``step`` in torch's layer that runs hooks and names the step for profilers; without it where there are neither."""
    hooked = Optimizer.profile_hook_step(step)

    @functools.wraps(hooked)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _has_hooks(self) or is_observed():
            return hooked(self, *args, **kwargs)
        if args or kwargs or not update_first:
            return step(self, *args, **kwargs)
        num_updated = update_first(self)
        if num_updated == 0:
            return step(self)
        groups = self.param_groups[num_updated:]
        return step(self, groups=groups) if groups else None

    return call


def _has_hooks(optimizer: Any) -> bool:
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or type(optimizer)._optimizer_step_code is not Optimizer._optimizer_step_code
    )


def _without_hooks(function: Any) -> Step:
    return without_hooks(function) or function


def _innermost(function: Any) -> Any:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
