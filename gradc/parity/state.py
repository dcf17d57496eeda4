"""What a step works on without being given it: the models, optimizers and tensors that it names as globals or closes over.

held_by:    function -> {name: model, optimizer, scheduler, generator or tensor}
generators: () -> {name: state} of the process's generators of random numbers
restoring:  what is held -> a context that puts everything back as it was, generators and modes of the process, too
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils import _pytree as pytree

from gradc.bits import same_bits
from gradc.shadow import process

_WITH_STATE_DICT = (Optimizer, LRScheduler, torch.amp.GradScaler)
_HELD = (nn.Module, Tensor, torch.Generator, random.Random, *_WITH_STATE_DICT)
_PLAIN = (bool, int, float, str)


def held_by(step: Any) -> dict[str, Any]:
    """Each once, under the first name that leads there. Functions of the same file are followed, and objects of its classes.

    What a function names has that name alone; only where two things would have it, the function's name is before it.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    module = getattr(step, "__module__", None)

    def visit(name: str, value: Any) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, _HELD):
            found[name] = value
            return
        for inner, part in _parts(value, module):
            is_named = isinstance(value, types.FunctionType) and inner and inner not in found
            visit(inner if is_named else f"{name}.{inner}" if name and inner else name or inner, part)

    if not isinstance(step, nn.Module):
        visit("", step)
    return found


def _parts(value: Any, module: str | None) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, types.FunctionType) and value.__module__ == module:
        yield from _of_function(value)
    elif isinstance(value, Mapping):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from ((str(number), part) for number, part in enumerate(value))
    elif type(value).__module__ == module and hasattr(value, "__dict__"):
        yield from vars(value).items()


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # an empty cell
            yield name, cell.cell_contents
    yield from (("", value) for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def has_state_dict(value: Any) -> bool:
    """True for what is no module, and keeps the state that training changes in a ``state_dict``."""
    return isinstance(value, _WITH_STATE_DICT)


def stateful_in(values: Any) -> list[Any]:
    """The models, optimizers, tensors and the like in nested lists and dictionaries: what can be put back."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, _HELD)]


def generators() -> dict[str, Any]:
    """``{"torch's random numbers": state}``, and Python's, NumPy's and CUDA's where they are used."""
    return {name: value for name, value in process.settings().items() if name.endswith("random numbers")}


@contextlib.contextmanager
def restoring(held: Iterable[Any]) -> Iterator[None]:
    """Put back, behind it: values and gradients of tensors, modes and numbers of modules, optimizers, generators."""
    restore, settings = [_snapshot(value) for value in held], process.settings()
    try:
        yield
    finally:
        for put_back in restore:
            put_back()
        process.put_back(settings)


def _snapshot(value: Any) -> Callable[[], Any]:
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if isinstance(value, nn.Module):
        return _of_module(value)
    if isinstance(value, torch.Generator | random.Random):
        return _of_generator(value)
    state = copy.deepcopy(value.state_dict())
    return lambda: value.load_state_dict(copy.deepcopy(state))


def _of_generator(generator: Any) -> Callable[[], Any]:
    if isinstance(generator, torch.Generator):
        return functools.partial(generator.set_state, generator.get_state())
    return functools.partial(generator.setstate, generator.getstate())


def _of_tensor(tensor: Tensor) -> Callable[[], None]:
    values, grad = tensor.detach().clone(), None if not tensor.is_leaf or tensor.grad is None else tensor.grad.clone()

    def put_back() -> None:
        if not same_bits(tensor.detach(), values):
            tensor.data.copy_(values)
        if tensor.is_leaf:
            tensor.grad = None if grad is None else grad.clone()

    return put_back


def _of_module(module: nn.Module) -> Callable[[], None]:
    tensors = [_of_tensor(tensor) for tensor in (*module.parameters(), *module.buffers())]
    numbers = [(part, _numbers(part)) for part in module.modules()]

    def put_back() -> None:
        for restore in tensors:
            restore()
        for part, values in numbers:
            vars(part).update(values)

    return put_back


def _numbers(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if isinstance(value, _PLAIN)}
