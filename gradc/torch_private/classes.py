"""What classes hold under some names, and whether they hold it still: of methods their code, of plain values the place.

    Held(names).add(cls, how)                              is_in(cls), is_in_all() -> bool
    Written().add_function(function, are_defaults_read)    are_same() -> bool: what is set in functions in place

Nothing of it is kept alive: what asks is compiled code, which hangs on functions of these very classes.
"""

from __future__ import annotations

import enum
import itertools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

Is = Callable[[Any], bool]  # is it what it was?

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_CONSTANTS = (bool, bytes, float, int, str, type(None))


class Compare(enum.Enum):
    """What is to be the same of a function or another descriptor under one of the names, and of a plain value."""

    CODE = "its code, what a property or a static method is made of; a value's place"
    FUNCTION = "the very function; a value's place"
    VALUE = "the very function; the very value"


def is_mutable(cls: type) -> bool:
    """Whether somebody can set an attribute of the class."""
    return not cls.__flags__ & _IMMUTABLE


class Held:
    """What is found under ``names``, and under those of special methods, in the classes that are added."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._held: dict[int, tuple[Compare, Is, dict[str, tuple[int, list[Is]]]]] = {}
        self._classes: list[weakref.ref[type]] = []

    def add(self, cls: type, compare: Compare) -> None:
        found = {name: (place, list(map(_is, parts))) for name, place, parts in self._found(cls, compare)}
        self._held[id(cls)] = compare, _are(cls.__mro__), found
        self._classes.append(weakref.ref(cls))

    def is_in(self, cls: type) -> bool:
        """Whether a class that was added holds what it held."""
        compare, is_mro, held = self._held[id(cls)]
        found = list(self._found(cls, compare))
        if len(found) != len(held) or not is_mro(cls.__mro__):
            return False
        return all(_is_held(held.get(name), place, parts) for name, place, parts in found)

    def functions_in(self, cls: type) -> Iterator[types.FunctionType]:
        """The functions that it holds under the names now."""
        for base in filter(is_mutable, cls.__mro__):
            for name in self._names_in(base):
                parts = _parts(vars(base)[name], Compare.FUNCTION)
                yield from (part for part in parts if isinstance(part, types.FunctionType))

    def is_in_all(self, _: object = None) -> bool:
        return all(self.is_in(cls) for reference in self._classes if (cls := reference()) is not None)

    def _found(self, cls: type, compare: Compare) -> Iterator[tuple[str, int, list[Any]]]:
        """(name, place in the order of lookup, what is compared of the value)."""
        seen: set[str] = set()
        for place, base in enumerate(cls.__mro__):
            if is_mutable(base):
                for name in self._names_in(base) - seen:
                    seen.add(name)
                    value = vars(base)[name]
                    how = Compare.FUNCTION if compare is Compare.CODE and name.startswith("__") else compare
                    yield name, place, list(_parts(value, how))

    def _names_in(self, base: type) -> set[str]:
        held = vars(base)
        special = {name for name in held if name.startswith("__") and _is_descriptor(held[name])}
        return (held.keys() & self._names) | special


class Written:
    """What is written in functions: their code, and of some the defaults. As ``SameDefinitions`` of the extension has it."""

    def __init__(self) -> None:
        self._functions: list[tuple[weakref.ref[types.FunctionType], types.CodeType, Is]] = []

    def add_function(self, function: types.FunctionType, are_defaults_read: bool) -> None:
        are_defaults = _are(_defaults(function)) if are_defaults_read else lambda _: True
        self._functions.append((weakref.ref(function), function.__code__, are_defaults))

    def are_same(self) -> bool:
        return all(
            function.__code__ is code and are_defaults(_defaults(function))
            for reference, code, are_defaults in self._functions
            if (function := reference()) is not None
        )


def _defaults(function: types.FunctionType) -> tuple[Any, ...]:
    """Those by place; then the names and values of those by keyword."""
    by_keyword = function.__kwdefaults__ or {}
    return (*(function.__defaults__ or ()), *itertools.chain.from_iterable(by_keyword.items()))


def _parts(value: Any, compare: Compare) -> Iterator[Any]:
    if not _is_descriptor(value):
        yield from (value,) if compare is Compare.VALUE else ()
    elif isinstance(value, types.FunctionType):
        yield value.__code__ if compare is Compare.CODE else value
    elif isinstance(value, staticmethod | classmethod | property):
        yield type(value)
        functions = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value.__func__,)
        for function in functions:
            yield from _parts(function, compare) if _is_descriptor(function) else (function,)
    else:
        yield value


def _is_descriptor(value: Any) -> bool:
    return hasattr(type(value), "__get__")


def _is_held(held: tuple[int, list[Is]] | None, place: int, parts: list[Any]) -> bool:
    if held is None or held[0] != place or len(held[1]) != len(parts):
        return False
    return all(is_it(part) for is_it, part in zip(held[1], parts, strict=True))


def _is(value: Any) -> Is:
    if type(value) in _CONSTANTS:
        return lambda other: other is value
    try:
        reference = weakref.ref(value)
    except TypeError:  # as a slot: one that is made later is another, unless it has come to the same address
        address = id(value)
        return lambda other: id(other) == address
    return lambda other: other is not None and reference() is other


def _are(values: tuple[Any, ...]) -> Is:
    are = list(map(_is, values))
    return lambda others: len(others) == len(are) and all(is_it(other) for is_it, other in zip(are, others, strict=True))
