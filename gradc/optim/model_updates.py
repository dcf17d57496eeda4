"""The optimizers of a compiled module's parameters: from their second step on as ``gradc.compile(optimizer)`` makes them.

    update_natively: module -> None         to be called when it is called, and records gradients, for the first time
    forget_modules:  () -> None             as if none had been

Who steps is heard from torch's own hook of all optimizers, for as few steps as it takes: while there is one, no step is quick.
A step inside of compiled code is native there; of one that a trial runs eagerly gradc.optim.eager_updates takes care.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from gradc.optim.eager_updates import is_noting
from gradc.optim.native_step import compile_optimizer, may_be_native
from gradc.torch_private.dynamo_patches.native_optimizers import is_step_of_compiled_code
from gradc.torch_private.reexecution import is_inside_compiled_code

_STEPS = 8  # that are looked at, behind each module: of two optimizers of it, and where another's come between


class _Watch:
    """Which modules are compiled, while steps of optimizers are still looked at."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[nn.Module]] = []
        self._num_left, self._lock = 0, threading.Lock()
        self._hook: RemovableHandle | None = None

    def add(self, module: nn.Module) -> None:
        if is_inside_compiled_code() or is_noting():
            return
        with self._lock:
            self._modules.append(weakref.ref(module))
            self._num_left = _STEPS
            self._hook = self._hook or register_optimizer_step_post_hook(self._note)

    def _note(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():  # another compiler traces, and looks no further
            return
        is_in_a_loop = not (is_inside_compiled_code() or is_step_of_compiled_code() or is_noting())
        with self._lock:
            if is_in_a_loop and may_be_native(optimizer) and self._has_parameters_of(optimizer):
                compile_optimizer(optimizer)
            self._num_left -= 1
            if self._num_left <= 0:
                self._end()

    def forget(self) -> None:
        """Nobody is looked at any more."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._modules.clear()

    def _has_parameters_of(self, optimizer: torch.optim.Optimizer) -> bool:
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        modules = [module for known in self._modules if (module := known()) is not None]
        return any(id(parameter) in updated for module in modules for parameter in _parameters(module))


def _parameters(module: nn.Module) -> Iterator[Any]:
    """Without a word of the user's, who may have made ``parameters`` another method."""
    for part in nn.Module.modules(module):
        yield from part._parameters.values()


_watch = _Watch()
update_natively, forget_modules = _watch.add, _watch.forget
