"""Dynamo, which turns a user's Python into graphs: what it is doing, and what it did."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo.eval_frame import set_eval_frame as set_eval_frame
from torch._dynamo.external_utils import wrap_inline
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._guards import _TLS, TracingContext
from torch.fx._lazy_graph_module import _LazyGraphModule

_STANDS_FOR = "_gradc_stands_for"
ALLOW_REQUIRES_GRAD = torch._C._functorch.set_inplace_requires_grad_allowed  # Dynamo's graphs call it around requires_grad_


@dataclasses.dataclass(frozen=True)
class Uncompiled:
    """A part of the user's program that no graph holds.

    Attributes:
        is_break: True where a graph ends and goes on later; False for a whole function.
        kind: the reason in a few words that do not change from program to program.
        detail: what exactly was met.
        where: the user's line.
        advice: what to do, or "".
    """

    is_break: bool
    kind: str
    detail: str
    where: str
    advice: str


def tracing_context() -> TracingContext | None:
    """Dynamo's context of the compilation that is going on in this thread.

    As ``TracingContext.try_get``, which asks for an attribute that mostly is missing: 0.4 us.
    """
    found: TracingContext | None = vars(_TLS).get("tracing_context")
    return found


def code_of(graph: torch.fx.GraphModule) -> Callable[..., Any]:
    """The graph's own Python, made when it is asked for first. Called as a module, a graph prints the errors that it raises."""
    _LazyGraphModule.force_recompile(graph)
    return graph.forward


def guard_weight(placeholder: torch.fx.Node, is_weight: bool) -> None:
    """Dynamo compiles again when the input stops being a leaf that is no view, or becomes one."""
    argument = placeholder.meta["grapharg"]
    source = argument.source
    install_guard(AttrSource(source, "is_leaf").make_guard(GuardBuilder.BOOL_MATCH))
    if is_weight and not isinstance(argument.example, torch.nn.Parameter):  # which is made detached
        install_guard(AttrSource(source, "_base").make_guard(GuardBuilder.NONE_MATCH))


def compilations() -> list[Any]:
    """What Dynamo says of its last 64 compilations: co_name, co_filename, restart_reasons, recompile_reason, ..."""
    return torch._dynamo.utils.get_compilation_metrics()


def is_compiled(target: Any) -> bool:
    """True for what torch.compile returned; a function that only copied its attributes, by functools.wraps, is none."""
    is_itself = getattr(target, "_torchdynamo_wrapper_id", None) == id(target)
    return is_itself and not getattr(target, "_torchdynamo_disable", False)


def in_place_of(compiled: Any, call: Callable[..., Any]) -> Any:
    """A function that calls ``call``, and passes for ``compiled``, which torch.compile returned, wherever that is looked at."""

    @functools.wraps(compiled)
    def function(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    function.__dict__ |= {"_torchdynamo_wrapper_id": id(function), _STANDS_FOR: compiled}
    return function


def backend_of(compiled: Any) -> Any:
    """The backend of what torch.compile returned, in Dynamo's wrappers."""
    compiled = getattr(compiled, _STANDS_FOR, compiled)
    if isinstance(compiled, torch._dynamo.OptimizedModule):
        return compiled.dynamo_ctx.callback
    return inspect.getclosurevars(compiled).nonlocals.get("callback")


def is_compiled_autograd_enabled() -> bool:
    """True where torch's own compiled autograd is."""
    return bool(torch._dynamo.compiled_autograd.compiled_autograd_enabled)


def num_graphs() -> int:
    """How many graphs Dynamo handed to a backend in this process so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def in_a_frame(function: Callable[..., Any]) -> Callable[..., Any]:
    """One that calls it from a frame that Dynamo looks at, which it does not at those of torch's own modules."""
    return wrap_inline(function)


def list_of_backends() -> list[str]:
    """The names that torch.compile knows, debugging ones too."""
    return torch._dynamo.list_backends(exclude_tags=("experimental",))
