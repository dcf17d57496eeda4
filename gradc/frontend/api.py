"""gradc.compile: what a user hands in is checked, given to Dynamo, and wrapped.

compile: (function | module | optimizer, options) -> the same, compiled

user code --Dynamo--> FX graphs --frontend.dynamo.Backend--> frontend.compile.compile_region, for each
"""

from __future__ import annotations

import dataclasses
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch

from gradc import compiled_autograd
from gradc.backends import lookup_backend
from gradc.config import config, validate
from gradc.errors import ConfigError
from gradc.frontend.begin import begin
from gradc.frontend.compiled_module import Calls, CompiledModule, as_compiled
from gradc.frontend.dynamo import Backend
from gradc.frontend.entering import quickly
from gradc.frontend.faster import faster_of
from gradc.journal import fallback
from gradc.optim import compile_optimizer
from gradc.options import AUTO_BACKEND, DEFAULT_BACKEND, CompileOptions
from gradc.policy.budget import Budget, budget_of_options
from gradc.shadow.verify import verified
from gradc.torch_private.dynamo import backend_of, in_place_of, is_compiled
from gradc.torch_private.ours import is_ours

Target = TypeVar("Target", bound=Callable[..., Any] | torch.optim.Optimizer)  # compiled, it has the type that it had
_SETTINGS = ("compare_with_eager", "compile_seconds", "verify")  # of gradc.config, for one call
_OPTIONS = ("bitwise", *_SETTINGS)


@overload
def compile(
    target: None = None,
    *,
    backend: str = ...,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    memory_budget: float = ...,
    options: dict[str, Any] | None = ...,
) -> Decorator: ...


@overload
def compile(
    target: Target,
    *,
    backend: str = ...,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    memory_budget: float = ...,
    options: dict[str, Any] | None = ...,
) -> Target: ...


def compile(
    target: Any = None,
    *,
    backend: str = DEFAULT_BACKEND,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    memory_budget: float = 1.0,
    options: dict[str, Any] | None = None,
    **others: Any,
) -> Any:
    """Compile a function or a module for training, with eager's gradients.

    It may be called with whatever eager takes: tensors of any dtype and any number of dimensions, of sizes that change from
    call to call, and other Python objects. Its outputs, their gradients and what is written in place have eager's values,
    shapes, dtypes and strides; with ``backend="inductor"`` all of that but the last bits of values. Nothing is compiled before
    the first call; a backward under a state that it was not called in before (autocast, which gradients are wanted), then.

        >>> import gradc, torch
        >>> double = gradc.compile(lambda x: 2 * x)  # or @gradc.compile, or @gradc.compile(dynamic=False)
        >>> double(torch.ones(2))
        tensor([2., 2.])

    Arguments:
        target: a function, or an nn.Module: the compiled one is the same module, with its class, parameters, attributes,
            hooks and keys of ``state_dict``, whose calls run compiled; or an optimizer of torch.optim, which is returned
            itself, with a native ``step``. What gradc compiled already is compiled with the new options; what
            TorchScript compiled is returned as it is, counted. Without it, returns a decorator.
        backend: a name of ``gradc.list_backends()``: "replay" (default) and "eager" give eager's bits, "inductor" fuses. "auto"
            keeps what is faster of those with eager's bits, and with ``options={"bitwise": False}`` of all: code that
            Inductor compiles in the background, while the program is replayed.
        fullgraph: raise where a part would run eagerly, instead of counting it.
        dynamic: True: sizes are symbolic from the start; False: never; None: a size becomes symbolic once it changes.
        memory_budget: 1.0: save for backward what eager saves.
        options: ``compile_seconds``, ``compare_with_eager``, ``verify``: the settings of ``gradc.config``, for this target.
            ``bitwise``: see ``backend="auto"``.
        others: none; what ``torch.compile`` takes beside these, as ``mode``, is refused with what to write instead.

    Returns:
        The compiled target; a decorator if there was none.

    Raises:
        ConfigError: for an argument that is not one of these, or a target that cannot be compiled, or that
            another backend of torch.compile compiled.
        FallbackError: on a call or in its backward, under ``fullgraph=True``.
    """
    _refuse(others)
    _validate(backend, fullgraph, dynamic, memory_budget, options)
    chosen = CompileOptions(backend, fullgraph, dynamic, memory_budget, tuple(sorted((options or {}).items())))
    return Decorator(chosen) if target is None else _compiled(target, chosen)


def _compiled(target: Any, options: CompileOptions) -> Any:
    if isinstance(target, torch.optim.Optimizer):
        return compile_optimizer(target)
    if not callable(target):
        raise ConfigError(f"gradc.compile takes a function, an nn.Module or an optimizer, not {type(target).__name__}.")
    if isinstance(target, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        fallback("TorchScript", type(target).__name__, fullgraph=options.fullgraph)
        return target
    target = _uncompiled(target)
    begin(Backend)
    name = getattr(target, "__qualname__", type(target).__name__)
    budget = budget_of_options(options, name)
    if isinstance(target, torch.nn.Module):
        call, forward = _by_dynamo(target, options, budget).forward, types.MethodType(_uncompiled(type(target).forward), target)
        call, forward_alone = _judged(quickly(call), target, None, name, budget, options), _by_dynamo(forward, options, budget)
        return as_compiled(target, Calls(call, _verified(forward_alone, forward, options), _compiled, options))
    has_backward = _calls_backward(getattr(target, "__code__", None))
    compiled = _by_dynamo(target, options, budget, has_backward)
    if not has_backward:
        return _as_compiled(_judged(compiled, target, None, name, budget, options), compiled)
    captured, whole = (_capturing(run, options.fullgraph) for run in (target, quickly(compiled)))
    return _as_function(_judged(whole, target, captured, name, budget, options), target)


def _by_dynamo(target: Any, options: CompileOptions, budget: Budget, has_backward: bool = False) -> Any:
    whole = options.fullgraph and not has_backward  # Dynamo always ends its graph at a backward; compiled autograd runs that
    return torch.compile(target, backend=Backend(options, budget), fullgraph=whole, dynamic=options.dynamic)


def _judged(compiled: Any, target: Any, captured: Any, name: str, budget: Budget, options: CompileOptions) -> Any:
    """``compiled``, whose calls are verified, or else timed: the verified ones are slow."""
    judged = _verified(compiled, target, options)
    return faster_of(compiled, target, captured, name, budget, options) if judged is compiled else judged


def _verified(compiled: Any, target: Any, options: CompileOptions) -> Any:
    num_calls: Any = dict(options.options).get("verify", config.verify if options.is_bitwise else 0)
    return verified(compiled, target, num_calls, options.fullgraph) if num_calls else compiled


def _uncompiled(target: Any) -> Any:
    """What gradc compiled already, as it was before: the new options hold.

    Raises:
        ConfigError: for what another compiler compiled.
    """
    if isinstance(target, CompiledModule):
        return target._orig_mod
    if isinstance(target, types.FunctionType) and target in _captured:
        return _captured[target]
    if not is_compiled(target):
        return target
    if is_ours(backend_of(target)):
        return target._orig_mod if isinstance(target, torch.nn.Module) else target._torchdynamo_orig_callable
    raise ConfigError(
        "gradc.compile: this is compiled by torch.compile already, with another backend.\n"
        "  Give gradc.compile the module or the function that it was made of."
    )


@dataclasses.dataclass(frozen=True)
class Decorator:
    """What ``gradc.compile(backend=...)`` returns: it compiles its target, and says with which options.

    Also a compiler for ``gradc.compiled_autograd.enable``, which reads them.
    """

    compile_options: CompileOptions

    @overload
    def __call__(self, target: None = None, **changes: Any) -> Decorator: ...

    @overload
    def __call__(self, target: Target, **changes: Any) -> Target: ...

    def __call__(self, target: Any = None, **changes: Any) -> Any:
        chosen = {field.name: getattr(self.compile_options, field.name) for field in dataclasses.fields(CompileOptions)}
        return compile(target, **{**chosen, "options": dict(self.compile_options.options), **changes})


def _calls_backward(code: types.CodeType | None) -> bool:
    """True for a function that runs a backward pass itself, as a training step does."""
    if code is None:
        return False
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return "backward" in code.co_names or "autograd" in code.co_names or any(map(_calls_backward, inner))


def _capturing(run: Callable[..., Any], fullgraph: bool) -> Callable[..., Any]:
    """``run``, with the backward passes that run inside captured."""
    enabled = compiled_autograd.enable_by_default(fullgraph)

    def call(*args: Any, **kwargs: Any) -> Any:
        with enabled:
            return run(*args, **kwargs)

    return call


def _as_compiled(call: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` in place of ``compiled``, which is a function; so Dynamo looks through it, too."""
    if call is compiled:
        return compiled
    function: Callable[..., Any] = in_place_of(compiled, call)
    function.__dict__["_gradc_call"] = call
    return function


def _as_function(call: Callable[..., Any], target: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` as what was compiled of ``target``, with its name."""

    @functools.wraps(target)
    def step(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    step.__dict__["_gradc_call"] = call  # where a compiled module has it
    _captured[step] = target
    return step


_captured: weakref.WeakKeyDictionary[Callable[..., Any], Callable[..., Any]] = weakref.WeakKeyDictionary()


def _refuse(others: dict[str, Any]) -> None:
    for name, value in others.items():
        cure = "Leave it out." if name != "mode" else 'Leave it out: gradc has no modes; backend="auto" chooses what is faster.'
        raise ConfigError(f"gradc.compile knows no {name}: {value!r}.\n  {cure}")


def _validate(backend: Any, fullgraph: Any, dynamic: Any, memory_budget: Any, options: dict[str, Any] | None) -> None:
    if not isinstance(backend, str):
        raise ConfigError(f"backend={backend!r}: give a name of gradc.list_backends(), or register_backend your own.")
    lookup_backend(backend)
    if not isinstance(fullgraph, bool):
        raise ConfigError(f"fullgraph={fullgraph!r}: True or False.")
    if dynamic not in (None, True, False):
        raise ConfigError(f"dynamic={dynamic!r}: True, False or None.")
    if memory_budget != 1.0:
        raise ConfigError(f"memory_budget={memory_budget!r}: only 1.0 (save what eager saves) is supported.")
    _validate_options(options or {}, backend)


def _validate_options(options: dict[str, Any], backend: str) -> None:
    if wrong := [name for name in options if name not in _OPTIONS]:
        raise ConfigError(f"options: there is no option {wrong[0]!r}. The options are: {', '.join(_OPTIONS)}.")
    validate({name: value for name, value in options.items() if name in _SETTINGS})
    bitwise = options.get("bitwise", True)
    if not isinstance(bitwise, bool):
        raise ConfigError(f"options: bitwise={bitwise!r}: True or False.")
    if "bitwise" in options and backend != AUTO_BACKEND:
        raise ConfigError(
            f'options: bitwise is for backend="auto", which chooses; backend={backend!r} is what it is.\n'
            '  gradc.compile(target, backend="auto", options={"bitwise": False})'
        )
    if not bitwise and options.get("verify"):
        raise ConfigError("options: verify compares bit for bit, and bitwise=False allows other bits. Leave one of them out.")
