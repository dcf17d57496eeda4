"""The optimizers that a function updates while it runs eagerly: their steps are native meanwhile.

    EagerUpdates: noting() -> a context; install(), remove()

Who steps is heard from torch's own hook of all optimizers. A native step and zero_grad are then attributes of the optimizer, as
``gradc.compile(optimizer)`` makes them; what is compiled reads the optimizer as it was, so they are removed before it runs.
"""

from __future__ import annotations

import contextlib
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradc.optim.native_step import give, may_be_native, native_methods
from gradc.torch_private.optimizers import has_step_of_its_class

_notes = threading.local()


def is_noting() -> bool:
    """True while this thread runs something eagerly whose optimizers are noted."""
    return getattr(_notes, "depth", 0) > 0


class EagerUpdates:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._found: list[_Methods] = []
        self._are_native = False

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Inside, whose step this thread runs is noted: with the next ``install`` it is native."""
        thread = threading.get_ident()

        def note(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if not torch.compiler.is_compiling() and threading.get_ident() == thread:
                self._note(optimizer)

        handle = register_optimizer_step_post_hook(note)
        _notes.depth = getattr(_notes, "depth", 0) + 1
        try:
            yield
        finally:
            _notes.depth -= 1
            handle.remove()

    def _note(self, optimizer: torch.optim.Optimizer) -> None:
        if any(methods.optimizer() is optimizer for methods in self._found):
            return
        if may_be_native(optimizer) and (functions := native_methods(optimizer)):
            self._found = [methods for methods in self._found if methods.optimizer() is not None]
            self._found.append(_Methods(optimizer, functions))
            self._are_native = False

    def install(self) -> None:
        if not self._are_native:
            for methods in self._found:
                methods.install()
            self._are_native = True

    def remove(self) -> None:
        if self._are_native:
            for methods in self._found:
                methods.remove()
            self._are_native = False


class _Methods:
    """Native methods of one optimizer, which is not kept alive."""

    def __init__(self, optimizer: torch.optim.Optimizer, functions: dict[str, types.FunctionType]) -> None:
        self.optimizer, self._functions = weakref.ref(optimizer), functions
        self._before: dict[str, Any] = {}

    def install(self) -> None:
        """In place of the class's methods, and of what a schedule has put around them."""
        optimizer = self.optimizer()
        if optimizer is None or self._before or not has_step_of_its_class(optimizer):
            return
        self._before = {name: vars(optimizer).get(name) for name in self._functions}
        give(optimizer, self._functions)

    def remove(self) -> None:
        """Whoever has put something else there meanwhile keeps it."""
        optimizer = self.optimizer()
        for name, before in self._before.items() if optimizer is not None else ():
            if getattr(vars(optimizer).get(name), "__func__", None) is not self._functions[name]:
                continue
            delattr(optimizer, name)
            if before is not None:
                setattr(optimizer, name, before)
        self._before = {}
