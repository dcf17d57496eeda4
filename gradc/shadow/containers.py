"""What holds other values and can be given other ones in place: dictionaries, lists, attributes, closures' cells, globals.

    Container.read: () -> pairs of key and value        Container.write: pairs -> None

What is written becomes the whole contents; what is the same object already is left alone.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Pairs = list[tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Container:
    read: Callable[[], Pairs]
    write: Callable[[Pairs], None]


def container_of(value: Any) -> Container | None:
    """The container that ``value`` itself is; None for what is none, or cannot be written into."""
    if isinstance(value, dict):
        return of_dict(value)
    if isinstance(value, list | collections.deque):
        return Container(lambda: [*enumerate(value)], functools.partial(_write_sequence, value))
    if isinstance(value, set):
        return Container(lambda: [("", item) for item in value], functools.partial(_write_set, value))
    if isinstance(value, types.CellType):
        return _of_cell(value)
    if isinstance(value, functools.partial):
        return _of_partial(value)
    return None


def of_dict(value: dict[Any, Any]) -> Container:
    kind = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict

    def write(pairs: Pairs) -> None:
        if not is_same(list(kind.items(value)), pairs):
            kind.clear(value)
            for key, item in pairs:
                kind.__setitem__(value, key, item)

    return Container(lambda: list(kind.items(value)), write)


def of_attributes(owner: Any, names: Iterable[str]) -> Container:
    """The attributes ``names`` of a class or of an object with slots, those that are there."""
    names = tuple(names)
    set_one: Callable[..., None] = type.__setattr__ if isinstance(owner, type) else object.__setattr__
    delete: Callable[..., None] = type.__delattr__ if isinstance(owner, type) else object.__delattr__

    def read() -> Pairs:
        get = vars(owner).__getitem__ if isinstance(owner, type) else functools.partial(object.__getattribute__, owner)
        return [*_present(names, get)]

    return Container(
        read, functools.partial(_write_names, read, functools.partial(set_one, owner), functools.partial(delete, owner))
    )


def of_globals(namespace: dict[str, Any], names: Iterable[str]) -> Container:
    names = tuple(dict.fromkeys(name for name in names if name in namespace))
    read = lambda: [(name, namespace[name]) for name in names if name in namespace]
    return Container(read, functools.partial(_write_names, read, namespace.__setitem__, namespace.__delitem__))


def is_same(pairs: Sequence[tuple[Any, Any]], others: Sequence[tuple[Any, Any]]) -> bool:
    """The same objects under the same keys, in the same order."""
    return len(pairs) == len(others) and all(a is b and x is y for (a, x), (b, y) in zip(pairs, others, strict=True))


def _present(names: Iterable[str], get: Callable[[str], Any]) -> Iterable[tuple[str, Any]]:
    for name in names:
        try:
            yield name, get(name)
        except (AttributeError, KeyError):
            continue


def _write_names(read: Callable[[], Pairs], set_one: Callable[..., None], delete: Callable[..., None], pairs: Pairs) -> None:
    present, wanted = dict(read()), dict(pairs)
    for name in present.keys() - wanted.keys():
        delete(name)
    for name, item in wanted.items():
        if name not in present or present[name] is not item:
            set_one(name, item)


def _write_sequence(value: Any, pairs: Pairs) -> None:
    items = [item for _, item in pairs]
    if len(items) != len(value) or any(a is not b for a, b in zip(items, value, strict=True)):
        value.clear()
        value.extend(items)


def _write_set(value: set[Any], pairs: Pairs) -> None:
    items = [item for _, item in pairs]
    if {id(item) for item in items} != {id(item) for item in value}:
        value.clear()
        value.update(items)


def _of_cell(cell: types.CellType) -> Container:
    def read() -> Pairs:
        try:
            return [("", cell.cell_contents)]
        except ValueError:
            return []

    def write(pairs: Pairs) -> None:
        present = read()
        if not pairs and present:
            del cell.cell_contents
        elif pairs and not is_same(present, pairs):
            cell.cell_contents = pairs[0][1]

    return Container(read, write)


def _of_partial(value: functools.partial[Any]) -> Container:
    def write(pairs: Pairs) -> None:
        if not is_same(read(), pairs):
            args = tuple(item for key, item in pairs if isinstance(key, int))
            keywords = {key: item for key, item in pairs if isinstance(key, str)}
            value.__setstate__((value.func, args, keywords, value.__dict__))  # type: ignore[attr-defined]

    read = lambda: [*enumerate(value.args), *value.keywords.items()]
    return Container(read, write)
