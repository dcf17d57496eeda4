"""Run a Program natively: the same kernels in the same order as the interpreter, without Python between them.

    lower:  Program -> (list of inputs -> list of outputs)     the list of inputs is emptied
    status: () -> Status                                       whether the extension serves, and why not

Runs below autograd, in any thread, without the GIL. Where the extension was not built, the interpreter serves, and the
first call says so once; an extension that was built for another torch is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch

from gradc.errors import VersionError
from gradc.executor import interpret
from gradc.executor.plan import lay_out
from gradc.ir.program import Program

Runner = Callable[[list[Any]], list[Any]]


@dataclasses.dataclass(frozen=True)
class Status:
    """Which executor runs Programs: ``name`` is "native" or "interpreter"; ``reason`` says why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def lower(program: Program) -> Runner:
    """Make ``program`` ready to run. Thread-safe and re-entrant, as the interpreter is.

    Raises:
        UnsupportedError: if a call has no native form, such as a higher-order operator. The interpreter has none such.
        VersionError: if the extension was built for another torch.
    """
    extension = _load()
    if extension is None:
        _warn_once()
        return interpret.lower(program)
    return extension.Plan(lay_out(program, extension.out_variants()))


def status() -> Status:
    """Which executor serves and why, without loading anything that could fail."""
    try:
        extension = _load()
    except VersionError as error:
        return Status("none", str(error))
    if extension is None:
        return Status("interpreter", "the extension gradc._C was not built: there was no C++ compiler at install time")
    return Status("native", f"the extension gradc._C, built for torch {extension.torch_version}")


def is_plan(runner: Runner) -> bool:
    """True if ``runner`` is a native plan, which C++ can run by itself."""
    extension = _load()
    return extension is not None and isinstance(runner, extension.Plan)


def region(layout: Any) -> Any:
    """The native region made from a gradc.aot.native.Layout."""
    extension = _load()
    assert extension is not None, "only a region whose forward is a native plan is made native"
    return extension.Region(layout)


def has_gradient_hooks(values: Iterable[Any]) -> bool:
    """True if something runs when the gradient of one of the leaves among ``values`` arrives."""
    extension = _load()
    assert extension is not None, "asked by native regions"
    return bool(extension.has_gradient_hooks(values))


def no_hooks() -> Any:
    """A guard for all hooks of a module and of those below it; None without the extension."""
    extension = _load()
    return None if extension is None else extension.NoHooks()


def before_backward_pass_inside_another() -> None:
    """Put back the edges of segments that the outer pass does without: see aot/csrc/accumulate.h."""
    if (loaded := sys.modules.get("gradc._C")) is not None:
        loaded.show_hidden_edges()


def extension() -> ModuleType | None:
    """The native part, gradc._C; None where it was not built."""
    return _load()


@functools.cache
def _load() -> ModuleType | None:
    """The extension; None if it was not built."""
    if importlib.util.find_spec("gradc._C") is None:
        return None
    try:
        return importlib.import_module("gradc._C")
    except VersionError:
        raise
    except ImportError as error:  # symbols that another torch has not
        raise VersionError(
            f"gradc's extension does not load with torch {torch.__version__}: it was probably compiled for another.\n"
            f"  {error}\n"
            "  Install gradc again, which compiles it: "
            "pip install --no-build-isolation --force-reinstall --no-deps gradc"
        ) from error


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        "gradc: the C++ extension was not built, so Programs run in Python: right, but slowly. "
        "With a C++ compiler installed, install gradc again with: pip install --no-build-isolation gradc",
        stacklevel=3,
    )
