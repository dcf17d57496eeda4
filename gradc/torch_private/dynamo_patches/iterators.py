"""Iterators of lists, deques and ranges: they look at the list as it is when they are asked, inside of a graph and behind it.

Dynamo gives an iterator the list's items of the moment; behind a graph it is made anew of those that are left. ``next`` of what
is no iterator is its first item, and behind a graph the reverse of a range has lost its last number. A deque must not change
under its iterator: Dynamo goes on, without an end where the deque grows.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch._dynamo.bytecode_transformation import create_call_function
from torch._dynamo.exc import raise_observed_exception
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.lists import (
    BaseListVariable,
    DequeVariable,
    ListIteratorVariable,
    ListVariable,
    RangeIteratorVariable,
)

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around, before

_LIST = "gradc_list"  # of an iterator: the list, and how many items the list had if it goes backwards; else -1
_AT_FIRST = "gradc_items"  # of a deque's iterator: the items that the deque had


def iterate_over_the_list_itself() -> Patch:
    """See the module's docstring."""
    return Patch(
        "iterate_over_the_list_itself",
        "Dynamo's iterators are over copies: what is put into the list later, they do not give.",
        (
            after(ListVariable, "tp_iter_impl", _forwards),
            after(DequeVariable, "tp_iter_impl", _of_deque),
            around(ListVariable, "call_method", _method),
            before(ListIteratorVariable, "tp_iternext_impl", _look),
            before(ListIteratorVariable, "unpack_var_sequence", _look),
            around(ListIteratorVariable, "reconstruct", _rebuild),
            before(RangeIteratorVariable, "reconstruct", _end),
            before(BuiltinVariable, "call_next", _next),
        ),
    )


def iterator_at(items: list[Any], place: int) -> Iterator[Any]:
    """Of the list, from that place on."""
    iterator: Any = iter(items)
    iterator.__setstate__(place)
    return iterator


def deque_iterator_at(items: deque[Any], place: int) -> Iterator[Any]:
    """Of the deque, from that place on."""
    iterator = iter(items)
    deque(itertools.islice(iterator, place), maxlen=0)
    return iterator


def reversed_at(items: list[Any], place: int) -> Iterator[Any]:
    """Of the list, from that place backwards."""
    iterator: Any = reversed(items)
    iterator.__setstate__(place)
    return iterator


def _forwards(iterator: Any, self: Any, *_: Any) -> Any:
    vars(iterator)[_LIST] = self, -1
    return iterator


def _of_deque(iterator: Any, self: Any, *_: Any) -> Any:
    vars(iterator)[_AT_FIRST] = [*self.items]
    return _forwards(iterator, self)


def _method(original: Method, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    made = original(self, tx, name, args, kwargs)
    if name == "__reversed__" and type(made) is ListIteratorVariable:
        vars(made)[_LIST] = self, len(self.items)
    return made


def _look(self: Any, *_: Any) -> None:
    """Take the items that the list has now."""
    if _LIST in vars(self) and not self.is_exhausted:
        items, length = vars(self)[_LIST]
        _ask_for_changes(self, items)
        self.items = items.items if length < 0 else _backwards(items.items, length, self.index)


def _backwards(items: list[Any], length: int, index: int) -> list[Any]:
    """Of a list that had ``length`` items: the iterator has given ``index``. Where the next one is gone, it gives no more."""
    is_at_end = length - 1 - index >= len(items)
    gone = [None] * (length - len(items))
    return [] if is_at_end else [*gone, *items[:length][::-1]]


def _ask_for_changes(self: Any, items: Any) -> None:
    at_first = vars(self).get(_AT_FIRST)
    if at_first is not None and [*map(id, at_first)] != [*map(id, items.items)]:
        end_graph("deque that changes under its iterator", "Python raises where items were put in or taken out.")


def _rebuild(original: Method, self: Any, codegen: Any) -> None:
    if _LIST not in vars(self) or self.is_exhausted:
        original(self, codegen)
        return
    items, length = vars(self)[_LIST]
    _ask_for_changes(self, items)
    make = deque_iterator_at if _AT_FIRST in vars(self) else iterator_at if length < 0 else reversed_at
    codegen.add_push_null(lambda: codegen.load_import_from(__name__, make.__name__))
    codegen(items)
    codegen.append_output(codegen.create_load_const(self.index if length < 0 else length - 1 - self.index))
    codegen.extend_output(create_call_function(2, False))


def _end(self: Any, _codegen: Any) -> None:
    self.stop = self.start + self.step * self.len


def _next(self: Any, tx: Any, *args: Any) -> None:
    given = args[0].realize()
    if isinstance(given, BaseListVariable):
        raise_observed_exception(TypeError, tx, args=[f"'{given.python_type().__name__}' object is not an iterator"])
