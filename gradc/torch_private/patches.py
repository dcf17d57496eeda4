"""A change of torch as a value: what is replaced, why, for which torch; it can be applied and undone.

    Patch(name, reason, changes).apply()        undo()      is_applied

What is applied stands in torch itself: each replacement carries a ``Layer`` that says what it replaced. So a patch is applied
once, also where this module was loaded again, and ``undo`` puts back the very objects that were there.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import threading
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, Protocol

import torch
from torch._dynamo import trace_rules

from gradc.errors import GradcError, VersionError
from gradc.torch_private.version import SUPPORTED, TAKEN_FOR

Method = Callable[..., Any]

_MISSING = "missing"  # a word and no object of its own, so that it outlives a reload
_LAYER = "_gradc_layer"
_lock = threading.RLock()


class Change(Protocol):
    """One thing that a patch changes. ``patch`` is the patch's name."""

    def missing(self) -> str:
        """What torch lacks of what is to be changed, in words; "" if nothing."""

    def apply(self, patch: str) -> None: ...

    def undo(self, patch: str) -> None: ...

    def is_applied(self, patch: str) -> bool: ...


@dataclasses.dataclass(frozen=True)
class Patch:
    """A change of torch: ``reason`` says why it is needed, ``versions`` which releases of torch it was written for.

    ``issue``: where torch was told of what is wrong, if it was.
    """

    name: str
    reason: str
    changes: tuple[Change, ...]
    versions: tuple[str, ...] = SUPPORTED
    issue: str = ""

    @property
    def is_applied(self) -> bool:
        return all(change.is_applied(self.name) for change in self.changes)

    def missing(self) -> list[str]:
        """What torch lacks of what is to be changed, in words."""
        return [f"{what}: {self.name}" for change in self.changes if (what := change.missing())]

    def apply(self) -> None:
        """Change torch, unless it is changed already."""
        with _lock:
            for change in self.changes:
                if not change.is_applied(self.name):
                    change.apply(self.name)

    def undo(self) -> None:
        """Put back what was there.

        Raises:
            GradcError: if something of it was changed again since, by another patch: that has to be undone first.
        """
        with _lock:
            for change in reversed(self.changes):
                if change.is_applied(self.name):
                    change.undo(self.name)

    def __str__(self) -> str:
        state = "applied" if self.is_applied else "not applied"
        issue = f" {self.issue}" if self.issue else ""
        lines = [f"{self.name} (torch {', '.join(self.versions)}; {state})", f"  {self.reason}{issue}"]
        return "\n".join([*lines, *(f"    {change}" for change in self.changes)])


class Patches(tuple[Patch, ...]):
    """Patches in the order in which they are applied. ``print`` shows each with its reason and what it changes."""

    @classmethod
    def for_this_torch(cls, patches: Iterable[Patch]) -> Patches:
        """Without those that were written for other releases alone."""
        return cls(patch for patch in patches if TAKEN_FOR in patch.versions)

    def apply(self) -> None:
        """Change torch, unless it is changed already.

        Raises:
            VersionError: if torch lacks something of what is to be changed; it says all, and nothing is changed.
        """
        if missing := [what for patch in self for what in patch.missing()]:
            told = "\n  ".join(dict.fromkeys(missing))
            raise VersionError(f"gradc works with torch {', '.join(SUPPORTED)}. torch {torch.__version__} lacks:\n  {told}")
        for patch in self:
            patch.apply()

    def undo(self) -> None:
        for patch in reversed(self):
            patch.undo()

    def __str__(self) -> str:
        return "\n".join(map(str, self))


@dataclasses.dataclass(frozen=True)
class Layer:
    """What a replacement knows of itself: the patch that made it, and what it replaced."""

    patch: str
    replacement: Callable[..., Any]
    original: Any


@dataclasses.dataclass(frozen=True)
class Place:
    """An attribute of a class or module, or an item of a dictionary or list."""

    owner: Any
    name: Any

    @property
    def value(self) -> Any:
        """What stands there now; None if nothing does."""
        return self.owner[self.name] if isinstance(self.owner, list) else self._namespace.get(self.name)

    @property
    def is_there(self) -> bool:
        return self.value is not None or self._is_inherited

    @property
    def _is_inherited(self) -> bool:
        return isinstance(self.owner, type) and hasattr(self.owner, self.name)

    @property
    def _namespace(self) -> MutableMapping[Any, Any]:
        if isinstance(self.owner, list):
            return dict(enumerate(self.owner))
        return self.owner if isinstance(self.owner, dict) else vars(self.owner)

    def _set(self, value: Any) -> None:
        has_items, is_gone = isinstance(self.owner, (dict, list)), value is _MISSING
        if has_items and is_gone:
            del self.owner[self.name]
        elif has_items:
            self.owner[self.name] = value
        elif is_gone:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)

    def __str__(self) -> str:
        if isinstance(self.owner, list):
            return f"Dynamo's handler of {dis.opname[self.name]}"
        if isinstance(self.owner, dict):
            return f"Dynamo's handler of {getattr(self.name, '__name__', self.name)}"
        owner = self.owner.__name__
        return f"{self.owner.__module__}.{owner}.{self.name}" if isinstance(self.owner, type) else f"{owner}.{self.name}"


@dataclasses.dataclass(frozen=True)
class Replace(Place):
    """What makes the new one of what stands at a place.

    A class's own may be new: then ``make`` gets one that calls what the class inherits. ``may_be_missing`` says that there may
    be none at all, so that ``make`` gets None.
    """

    make: Callable[[Any], Any]
    may_be_missing: bool = False

    def missing(self) -> str:
        """Looked at before anything is changed: nothing would call the replacement, and nobody would notice."""
        return "" if self.may_be_missing or self.is_there else str(self)

    def apply(self, patch: str) -> None:
        before = self._namespace.get(self.name, _MISSING)
        made = self.make(self._original(before))
        setattr(made, _LAYER, Layer(patch, made, before))
        self._set(made)

    def undo(self, patch: str) -> None:
        current = self._namespace[self.name]
        layer = _layer_of(current)
        if layer is None or layer.patch != patch:
            by = f"by gradc's patch {layer.patch}" if layer else f"by {getattr(current, '__module__', 'somebody else')}"
            raise GradcError(f"{patch} cannot be undone: {self} was changed again since, {by}.\n  Undo that first.")
        self._set(layer.original)

    def is_applied(self, patch: str) -> bool:
        current = self.value
        while current is not None:
            layer = _layer_of(current)
            if layer is not None and layer.patch == patch:
                return True
            current = layer.original if layer is not None else getattr(current, "__wrapped__", None)
        return False

    def _original(self, before: Any) -> Any:
        if before is not _MISSING:
            return before
        return _inherited(self.owner, self.name) if self._is_inherited else None


def _inherited(owner: type, name: str) -> Callable[..., Any]:
    """What ``owner`` inherits as ``name``, looked up at each call."""

    @functools.wraps(getattr(owner, name))
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, self), name)(*args, **kwargs)

    return call


def _layer_of(value: Any) -> Layer | None:
    """The layer that ``value`` is; None for what only copied its attributes, as ``functools.wraps`` does."""
    layer = getattr(value, _LAYER, None)
    return layer if layer is not None and layer.replacement is value else None


@dataclasses.dataclass(frozen=True)
class SkipFiles:
    """Files and folders whose functions Dynamo leaves as they are, where compiled code calls them."""

    paths: tuple[str, ...]

    def missing(self) -> str:
        """Nothing: the list is torch's, the files are gradc's."""
        return ""

    def apply(self, patch: str) -> None:
        trace_rules.SKIP_DIRS.extend(path for path in self.paths if path not in trace_rules.SKIP_DIRS)
        trace_rules._recompile_re()

    def undo(self, patch: str) -> None:
        trace_rules.SKIP_DIRS[:] = [path for path in trace_rules.SKIP_DIRS if path not in self.paths]
        trace_rules._recompile_re()

    def is_applied(self, patch: str) -> bool:
        return all(path in trace_rules.SKIP_DIRS for path in self.paths)

    def __str__(self) -> str:
        return f"torch._dynamo.trace_rules.SKIP_DIRS: {len(self.paths)} files and folders of gradc"
