"""Everything that a call can come to: through its arguments, the function's closure, its globals, the attributes of objects.

    explore: (named roots, globals of the function's file) -> World

Functions are followed into what they close over, and, in the file of the compiled one, into the globals that they name.
What only C knows, and the insides of torch and of Python's library, are not looked into.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import enum
import functools
import io
import itertools
import queue
import random
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from gradc.shadow.containers import Container, Pairs, container_of, of_attributes, of_dict, of_globals

MAX_CONTAINERS = 200_000
_MOST = 2**40  # of numbers that are no addresses
KINDS = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_ITERATORS: tuple[type, ...] = (itertools.count, type(iter([])), type(iter(())), type(iter(range(0))))  # that can be copied
_CLOSED = ("torch._", "torch.jit", "torch.fx", "torch.utils.hooks", "torch.overrides", "gradc.")
_OPEN = (types.SimpleNamespace, argparse.Namespace, collections.UserDict, collections.UserList, queue.Queue, threading.local)
_CODE = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property, functools._lru_cache_wrapper)
_HIDDEN = ("_parameters", "_buffers", "_modules")  # names that are no part of a parameter's name


def hooks_of(leaf: Tensor) -> list[Any]:
    return [*(leaf._backward_hooks or {}).values(), *post_accumulate_hooks_of(leaf)]


def post_accumulate_hooks_of(leaf: Tensor) -> list[Any]:
    return [*(getattr(leaf, "_post_accumulate_grad_hooks", None) or {}).values()]


class UnverifiableError(Exception):
    """A call that cannot be run twice; the reason, in words that do not change from program to program."""


@dataclasses.dataclass
class World:
    """``containers``: each once. ``values``: tensors, numbers and other plain values, by the way that leads there."""

    containers: list[Container] = dataclasses.field(default_factory=list)
    values: dict[str, Any] = dataclasses.field(default_factory=dict)

    def contents(self) -> list[Pairs]:
        return [container.read() for container in self.containers]

    def install(self, contents: Iterable[Pairs]) -> None:
        for container, pairs in zip(self.containers, contents, strict=True):
            container.write(pairs)


def is_stateful(value: Any) -> bool:
    """True for what is changed in place and copied as a whole: tensors, arrays, generators of random numbers."""
    if isinstance(value, (Tensor, torch.Generator, random.Random, *_ITERATORS)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray | numpy.random.Generator | numpy.random.RandomState)


def explore(roots: Iterable[tuple[str, Any]], home: dict[str, Any] | None) -> World:
    """
    Raises:
        UnverifiableError: for a value that cannot be copied.
    """
    explorer = _Explorer(home)
    try:
        for name, value in roots:
            explorer.visit(name, value)
    except RecursionError:
        raise UnverifiableError("objects nested too deep") from None
    return explorer.world


class _Explorer:
    def __init__(self, home: dict[str, Any] | None) -> None:
        self.world, self.home = World(), home
        self.seen: dict[int, Any] = {}
        self.num_values: collections.Counter[str] = collections.Counter()

    def visit(self, path: str, value: Any) -> None:
        if isinstance(value, _PLAIN) or is_stateful(value):
            self._note(path, value)
            if type(value) in KINDS and value.is_leaf:  # what else is a tensor may run code of its own where it is looked at
                self._visit_what_hangs_on(path, value)
        elif isinstance(value, tuple):
            self._visit_pairs(path, enumerate(value))
        elif id(value) not in self.seen:
            self.seen[id(value)] = value
            self._look_into(path, value)

    def _note(self, path: str, value: Any) -> None:
        self.num_values[path] += 1
        number = self.num_values[path]
        self.world.values[path if number == 1 else f"{path} ({number})"] = value

    def _visit_what_hangs_on(self, path: str, leaf: Tensor) -> None:
        if leaf.grad is not None:
            self.visit(f"{path}.grad", leaf.grad)
        for hook in hooks_of(leaf):  # they run where a backward is part of the call
            self.visit("hook", hook)

    def _look_into(self, path: str, value: Any) -> None:
        if (container := container_of(value)) is not None:
            self._enter(path, container)
            if not _is_closed(type(value).__module__):  # a class of the user's: it may have attributes, too
                self._enter_object(path, value)
        elif isinstance(value, types.MethodType):
            self.visit(path, value.__self__)
            self.visit("", value.__func__)
        elif isinstance(value, types.FunctionType):
            self._enter_function(value)
        elif isinstance(value, staticmethod | classmethod | property | functools.cached_property):
            self.visit("", getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", None))
        elif isinstance(value, type):
            self._enter_class(value)
        elif isinstance(value, types.GeneratorType | types.CoroutineType):
            raise UnverifiableError("a generator")
        elif isinstance(value, io.IOBase):
            raise UnverifiableError("an open file")
        elif isinstance(value, functools._lru_cache_wrapper):
            raise UnverifiableError("functools.lru_cache")
        elif isinstance(value, torch.jit.ScriptModule | torch.jit.ScriptFunction):
            raise UnverifiableError("TorchScript")
        elif not isinstance(value, types.ModuleType | enum.Enum):
            self._enter_object(path, value)

    def _enter(self, path: str, container: Container) -> None:
        self.world.containers.append(container)
        if len(self.world.containers) > MAX_CONTAINERS:
            raise UnverifiableError("too many objects")
        self._visit_pairs(path, container.read())

    def _visit_pairs(self, path: str, pairs: Iterable[tuple[Any, Any]]) -> None:
        for key, value in pairs:
            self.visit(_joined(path, key), value)
            if isinstance(key, Tensor):
                self.visit(f"{path}.key", key)

    def _enter_function(self, function: types.FunctionType) -> None:
        if "__wrapped__" in vars(function):
            self.visit("", vars(function)["__wrapped__"])
        if "_torchdynamo_orig_callable" in vars(function):
            self.visit("", vars(function)["_torchdynamo_orig_callable"])
        if _is_closed(function.__globals__.get("__name__", "")):
            return
        self._enter(function.__name__, of_dict(vars(function)))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.visit(name, cell)
        self._enter(function.__name__, of_attributes(function, ("__defaults__", "__kwdefaults__")))
        if function.__globals__ is self.home:
            self._enter("", of_globals(self.home, _names(function.__code__)))

    def _enter_class(self, kind: type) -> None:
        if _is_closed(kind.__module__):
            return
        for base in kind.__mro__[1:]:
            self.visit(base.__name__, base)
        parts = {name: part for name, part in vars(kind).items() if not name.startswith("__")}
        self._enter(kind.__name__, of_attributes(kind, (name for name in parts if _is_data(parts[name]))))
        for part in vars(kind).values():
            if isinstance(part, _CODE):
                self.visit("", part)

    def _enter_object(self, path: str, value: Any) -> None:
        kind = type(value)
        if _is_closed(kind.__module__) and not isinstance(value, (torch.nn.Module, *_OPEN)):
            return
        self.visit("", kind)
        if isinstance(attributes := getattr(value, "__dict__", None), dict) and id(attributes) not in self.seen:
            self.seen[id(attributes)] = attributes
            self._enter(path, of_dict(attributes))
        if slots := [name for base in kind.__mro__ for name in _slots(base)]:
            self._enter(path, of_attributes(value, slots))


def _joined(path: str, key: Any) -> str:
    if isinstance(key, str):
        if not key or key in _HIDDEN:
            return path
        return f"{path}.{key}" if path else key
    return f"{path}[{key if isinstance(key, int) and not is_address(key) else type(key).__name__}]"


def is_address(value: Any) -> bool:
    """True for what may be an identity: copies have other ones."""
    return isinstance(value, int) and abs(value) > _MOST


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _slots(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    return [name for name in ([slots] if isinstance(slots, str) else slots) if not name.startswith("__")]


def _is_data(value: Any) -> bool:
    return isinstance(value, (*_PLAIN, tuple, list, dict, set)) or is_stateful(value)


@functools.cache
def _is_closed(module: str) -> bool:
    """True for the library of Python, and the parts of torch that hold no state of the user's."""
    top = module.partition(".")[0]
    return (top in sys.stdlib_module_names and top != "__main__") or f"{module}.".startswith(_CLOSED)
