"""Load the C++ extension ``gradc._C``, and say whether it serves.

    extension: () -> the module, or None where it was not built
    status:    () -> Status: whether it serves, and why not

Where the extension was not built, everything runs in Python, more slowly; one that was built for another torch is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from gradc.errors import VersionError

if TYPE_CHECKING:
    import gradc._C as _C


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
        found = extension()
    except VersionError as error:
        return Status("none", str(error))
    if found is None:
        return Status("interpreter", "the extension gradc._C was not built: there was no C++ compiler at install time")
    return Status("native", f"the extension gradc._C, built for torch {found.torch_version}")


def is_plan(runner: Any) -> bool:
    """True if ``runner`` is a native plan, which C++ can run by itself."""
    found = extension()
    return found is not None and isinstance(runner, found.Plan)


def region(layout: Any) -> _C.Region:
    """The native region made from a gradc.region.native_layout.RegionSpec."""
    found = extension()
    assert found is not None, "only a region whose forward is a native plan is made native"
    return found.Region(layout)


def has_gradient_hooks(values: Iterable[Any]) -> bool:
    """True if something runs when the gradient of one of the leaves among ``values`` arrives."""
    found = extension()
    assert found is not None, "asked by native regions"
    return bool(found.has_gradient_hooks(values))


def no_hooks() -> _C.NoHooks | None:
    """A guard for all hooks of a module and of those below it; None without the extension."""
    found = extension()
    return None if found is None else found.NoHooks()


def before_backward_pass_inside_another() -> None:
    """Put back the edges of segments that the outer pass does without: see nodes/csrc/accumulate.h."""
    if (loaded := sys.modules.get("gradc._C")) is not None:
        loaded.show_hidden_edges()


@functools.cache
def extension() -> ModuleType | None:
    """The native part, gradc._C; None where it was not built.

    Raises:
        VersionError: if it was built for another torch.
    """
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
