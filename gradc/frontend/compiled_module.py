"""A compiled module: the nn.Module itself, in every respect but one: a call of it runs compiled.

    as_compiled: (module, how it is called and copied) -> the compiled module

It is an object of a subclass of the module's class, and has the module's own ``__dict__``: parameters, buffers, submodules,
hooks and attributes are the same objects, and so ``state_dict``, ``len``, indexing and names are eager's, with no word about
them here. torch's wrapper, a module around the module, has other names (``_orig_mod.weight``) and none of the special methods,
and runs global hooks twice.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from gradc.options import CompileOptions

_PREFIX = "_orig_mod."  # of the names in checkpoints of modules that torch.compile wrapped


@dataclasses.dataclass(frozen=True)
class Calls:
    """How a compiled module is called, and made again for a copy.

    Attributes:
        call: the module's call, compiled: hooks and all.
        forward: its method ``forward`` alone, compiled.
        again: (module, options) -> a compiled module; a global function, so that it can be pickled.
        options: what it was compiled with.
    """

    call: Callable[..., Any]
    forward: Callable[..., Any]
    again: Callable[[Any, CompileOptions], Any]
    options: CompileOptions


class CompiledModule:
    """What ``gradc.compile(module)`` puts before the class of the module.

    Attributes:
        _orig_mod: the module, under the name that it has in torch's wrapper: libraries look for that.
    """

    __slots__ = ()

    _orig_mod: Any
    _gradc_call: Callable[..., Any]  # calls.call, one look-up nearer
    _gradc_calls: Calls

    def __init_subclass__(cls) -> None:
        """The class of the user's module is not told of a subclass."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._gradc_call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._orig_mod, name)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self._gradc_calls.again, (self._orig_mod, self._gradc_calls.options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._gradc_calls.again(copy.deepcopy(self._orig_mod, memo), self._gradc_calls.options)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take checkpoints of modules that torch.compile wrapped, too."""
        for key in [key for key in state_dict if key.startswith(prefix + _PREFIX)]:
            state_dict[prefix + key.removeprefix(prefix + _PREFIX)] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)  # type: ignore[misc]


def as_compiled(module: nn.Module, calls: Calls) -> Any:
    compiled = object.__new__(_class_of(type(module)))
    slots = {"__dict__": module.__dict__, "_orig_mod": module, "_gradc_call": calls.call, "_gradc_calls": calls}
    for name, value in slots.items():
        object.__setattr__(compiled, name, value)
    return compiled


def module_of(compiled: Any) -> nn.Module | None:
    """The module behind a compiled one; None for anything else."""
    return compiled._orig_mod if isinstance(compiled, CompiledModule) else None


def is_forward(value: Any) -> bool:
    """True for ``forward`` of a class of compiled modules: calls run compiled what it has as ``__wrapped__``."""
    return isinstance(value, types.FunctionType) and value in _forwards


_forwards: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
_classes: weakref.WeakValueDictionary[type[nn.Module], type[Any]] = weakref.WeakValueDictionary()


def _class_of(of_module: type[nn.Module]) -> type[Any]:
    """The class of the compiled modules of a class: one, so that what is guarded by type holds for the next of them."""
    made = _classes.get(of_module)
    if made is None:
        made = _classes[of_module] = types.new_class(of_module.__name__, (CompiledModule, of_module), {}, _fill(of_module))
    return made


def _fill(of_module: type[nn.Module]) -> Callable[[dict[str, Any]], None]:
    @functools.wraps(of_module.forward)
    def forward(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        return self._gradc_calls.forward(*args, **kwargs)

    _forwards.add(forward)
    names = {name: getattr(of_module, name) for name in ("__doc__", "__module__", "__qualname__")}
    slots = ("_orig_mod", "_gradc_call", "_gradc_calls")
    return lambda namespace: namespace.update(names, __slots__=slots, forward=forward)
