"""The compilers that a step can be run under, by name.

    COMPILERS: name -> Compiler          find: name -> Compiler

A Compiler is what a step gets as its first argument, ``compile``: call it on a function or module, optionally with
``dynamic=`` or ``fullgraph=``. "eager" returns the function itself, "dynamo" is Dynamo's capture run eagerly,
"dynamo_by_gradc" the same with the graph breaks that gradc makes, "captured" is eager whose backward passes go through compiled
autograd, "gradc_captured" is gradc with the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters as dynamo_counters


@dataclasses.dataclass(frozen=True)
class Compiler:
    """One way to compile a function.

    Attributes:
        name: what reports and tables call it.
        wrap: (function or module, options) -> the compiled one.
        is_bitwise: False where the last bits of a value may differ from eager's, but nothing else.
        is_captured: True if compiled autograd runs backward. A step then runs twice: to capture, and to replay.
    """

    name: str
    wrap: Callable[..., Any]
    is_bitwise: bool = True
    is_captured: bool = False

    def __call__(self, target: Callable[..., Any] | None = None, **options: Any) -> Any:
        if target is None:
            return lambda target: self.wrap(target, **options)
        return self.wrap(target, **options)

    @property
    def is_gradc(self) -> bool:
        return self.is_captured or self.name.startswith("gradc")

    @property
    def num_runs(self) -> int:
        return 2 if self.is_captured else 1

    def backward(self) -> contextlib.AbstractContextManager[None]:
        """What a step runs in."""
        if not self.is_captured:
            return contextlib.nullcontext()
        import gradc

        return gradc.compiled_autograd.enable()

    def reset(self) -> None:
        """Forget everything compiled and counted."""
        if self.name != "captured":  # takes longer than a small program
            torch.compiler.reset()
            dynamo_counters.clear()
        if self.is_gradc:
            import gradc

            gradc.reset()

    def fallbacks(self) -> dict[str, int]:
        """What gradc ran eagerly since the last reset: reason -> how often. Empty for other compilers."""
        if not self.is_gradc:
            return {}
        import gradc

        return dict(gradc.counters["fallbacks"])

    def num_graphs(self) -> int:
        """How many graphs Dynamo captured since the last reset; compiled autograd, where the forward is eager."""
        if self.name == "captured":
            import gradc

            return gradc.counters["compiled_autograd"]["captures"]
        return dynamo_counters["stats"]["unique_graphs"]


def _gradc(backend: str | None) -> Callable[..., Any]:
    def wrap(target: Callable[..., Any], **options: Any) -> Any:
        import gradc

        return gradc.compile(target, **options) if backend is None else gradc.compile(target, backend=backend, **options)

    return wrap


class _AsCaptured:
    """A backend that runs Dynamo's graphs as they are; Dynamo's patches take it for gradc, by the name of its module."""

    __name__, __module__ = "as_captured", "gradc.as_captured"

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Callable[..., Any]:
        return graph.forward


def _torch(backend: str | _AsCaptured) -> Callable[..., Any]:
    return lambda target, **options: torch.compile(target, backend=backend, **options)


EAGER = Compiler("eager", lambda target, **options: target)
DYNAMO = Compiler("dynamo", _torch("eager"))
DYNAMO_BY_GRADC = Compiler("dynamo_by_gradc", _torch(_AsCaptured()))
GRADC = Compiler("gradc", _gradc(None))
COMPILERS: dict[str, Compiler] = {
    compiler.name: compiler
    for compiler in (
        EAGER,
        DYNAMO,
        DYNAMO_BY_GRADC,
        Compiler("aot_eager", _torch("aot_eager")),
        Compiler("inductor", _torch("inductor"), is_bitwise=False),
        GRADC,
        Compiler("gradc_entry", _torch("gradc")),
        Compiler("captured", EAGER.wrap, is_captured=True),
        Compiler("gradc_captured", GRADC.wrap, is_captured=True),
    )
}


def find(name: str) -> Compiler:
    """The compiler called ``name``; ``gradc:NAME`` is gradc with ``backend=NAME``."""
    if name.startswith("gradc:"):
        return Compiler(name, _gradc(name.removeprefix("gradc:")), is_bitwise="inductor" not in name)
    if name not in COMPILERS:
        raise SystemExit(f"There is no compiler {name!r}. Choose one of {', '.join(COMPILERS)}, or gradc:BACKEND.")
    return COMPILERS[name]
