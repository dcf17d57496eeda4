"""Load the C++ extension ``gradc._C``, and say whether it serves.

    is_built:  () -> whether there is one; it is then loaded
    extension: the module, with the types of gradc/_C.pyi. Ask ``is_built`` first
    status:    () -> Status: whether it serves, and why not

Where the extension was not built, everything runs in Python, more slowly; one that was built for another torch is an error.
Write ``native.extension.Walk(...)``, not ``from gradc.native import extension``, which would load it when imported.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradc.errors import VersionError

if TYPE_CHECKING:
    import gradc._C as extension


# pip keeps what it compiled, for whichever torch: hence --no-cache-dir.
_CURE = (
    "  Install gradc again, in its checkout, which compiles it for this one:"
    " pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps .\n"
    "  or install the wheel that is for this torch: docs/torch-versions.md"
)


@dataclasses.dataclass(frozen=True)
class Status:
    """Which executor runs Programs: ``name`` is "native" or "interpreter"; ``reason`` says why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def status() -> Status:
    """Which executor serves and why, without loading anything that could fail."""
    try:
        if is_built():
            return Status("native", f"the extension gradc._C, built for torch {extension.torch_version}")
    except VersionError as error:
        return Status("none", str(error))
    return Status("interpreter", "the extension gradc._C was not built: there was no C++ compiler at install time")


def no_hooks() -> extension.NoHooks | None:
    """A guard for all hooks of a module and of those below it; None without the extension."""
    return extension.NoHooks() if is_built() else None


def ask_for_hooks(dictionaries: Sequence[dict[Any, Any]]) -> Callable[[object], bool]:
    """What tells, called with anything, whether some of the dictionaries hold hooks just if some do now."""
    if is_built():
        return extension.ask_for_hooks(list(dictionaries))
    had_any = any(dictionaries)
    return lambda _: any(dictionaries) == had_any


def release_memory() -> None:
    """Give memory back that is kept for the next step, and that no tensor uses."""
    if is_built():
        extension.release_large_memory()


def tell_of_replaced_kernels(are_replaced: bool) -> None:
    if is_built():
        extension.tell_of_replaced_kernels(are_replaced)


def same_definitions(look: Callable[[type], list[Any] | None]) -> extension.SameDefinitions | None:
    """A guard for classes and functions; None without the extension.

    ``look`` is asked of a class that has changed: it gives None, or if what was read is there, functions that are new there.
    """
    return extension.SameDefinitions(look) if is_built() else None


def same_objects(look: Callable[[dict[str, Any]], bool], variables: dict[str, Any]) -> extension.SameObjects | None:
    """A guard for what is reached from a frame's variables and globals: ``look`` is asked where something changed.

    None without the extension, and where Python does not tell whether a dictionary is as it was.
    """
    return extension.SameObjects(look, variables) if is_built() and sys.version_info < (3, 12) else None


def callback_to(wrapped: Any, backend: Any) -> Any:
    """A callback of Dynamo's from which its backend is found in one step; the callback itself without the extension."""
    return extension.callback_to(wrapped, backend) if is_built() else wrapped


def current_autograd_node(in_torch: Callable[[], Any]) -> Any:
    """The node that torch's engine runs in this thread, or that a captured pass runs in its place; None outside of a pass."""
    return extension.current_autograd_node() if is_built() else in_torch()


def before_backward_pass_inside_another() -> None:
    """Put back the edges of segments that the outer pass does without: see nodes/csrc/accumulate.h."""
    if "extension" in globals():  # as long as it is not loaded, there is no segment
        extension.show_hidden_edges()


_graphs_of_passes: list[bool] = []  # not empty once a pass has made a graph: until then no thread of the engine's has


def before_backward_pass(
    roots: Sequence[Any], grads: Any, keep_graph: bool, create_graph: bool, inputs: Sequence[Any] = (), *_: Any
) -> None:
    """Expand segments between whose nodes those of another thread may run: see nodes/csrc/expand.h. As the engine's."""
    if create_graph and not _graphs_of_passes:
        _graphs_of_passes.append(True)
    if _graphs_of_passes and "extension" in globals():
        extension.expand_segments(roots, inputs, create_graph)


@functools.cache
def is_built() -> bool:
    """True if there is an extension.

    Raises:
        VersionError: if it was built for another torch.
    """
    if importlib.util.find_spec("gradc._C") is None:
        return False
    try:
        globals()["extension"] = importlib.import_module("gradc._C")
    except ImportError as error:
        raise VersionError(f"{_what_is_wrong(error)}\n{_CURE}") from error
    return True


def _what_is_wrong(error: ImportError) -> str:
    """The extension looks at torch's version before all else; where another torch lacks a symbol, it cannot even do that."""
    if isinstance(error.__cause__, VersionError):  # pybind11 raises an ImportError because of it
        return str(error.__cause__)
    return f"gradc's extension does not load with torch {torch.__version__}: it was probably compiled for another.\n  {error}"


def __getattr__(name: str) -> Any:
    """``extension``, for the first who asks for it before ``is_built``."""
    if name == "extension" and is_built():
        return globals()[name]
    raise AttributeError(f"module 'gradc.native' has no attribute {name!r}" + ": it was not built" * (name == "extension"))
