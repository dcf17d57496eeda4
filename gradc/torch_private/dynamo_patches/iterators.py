"""Iterators of lists, deques and ranges: they look at the list as it is when they are asked, inside of a graph and behind it.

Dynamo gives an iterator the list's items of the moment; behind a graph it is made anew of those that are left. ``next`` of what
is no iterator is its first item, and behind a graph the reverse of a range has lost its last number. A deque must not change
under its iterator: Dynamo goes on, without an end where the deque grows.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

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

_OVER = "gradc_over"  # of an iterator: _Over


class _Over(NamedTuple):
    """Dynamo's variable of the list or deque. ``length``: how many items it had, of one that goes backwards over it.

    ``at_first``: the items that it had, of a deque.
    """

    container: Any
    length: int | None = None
    at_first: list[Any] | None = None


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
    vars(iterator)[_OVER] = _Over(self)
    return iterator


def _of_deque(iterator: Any, self: Any, *_: Any) -> Any:
    vars(iterator)[_OVER] = _Over(self, at_first=[*self.items])
    return iterator


def _method(original: Method, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    made = original(self, tx, name, args, kwargs)
    if name == "__reversed__" and type(made) is ListIteratorVariable:
        vars(made)[_OVER] = _Over(self, length=len(self.items))
    return made


def _look(self: Any, *_: Any) -> None:
    """Take the items that the list has now."""
    over = _over(self)
    if over is not None:
        items = over.container.items
        self.items = items if over.length is None else _backwards(items, over.length, self.index)


def _over(iterator: Any) -> _Over | None:
    """What the iterator is over: None at its end, where it stays, and of one that looks at nothing that changes."""
    over: _Over | None = None if iterator.is_exhausted else vars(iterator).get(_OVER)
    if over is not None and over.at_first is not None and [*map(id, over.at_first)] != [*map(id, over.container.items)]:
        end_graph("deque that changes under its iterator", "Python raises where items were put in or taken out.")
    return over


def _backwards(items: list[Any], length: int, index: int) -> list[Any]:
    """Of a list that had ``length`` items: the iterator has given ``index``. Where the next one is gone, it gives no more."""
    is_at_end = length - 1 - index >= len(items)
    gone = [None] * (length - len(items))
    return [] if is_at_end else [*gone, *items[:length][::-1]]


def _rebuild(original: Method, self: Any, codegen: Any) -> None:
    over = _over(self)
    if over is None:
        original(self, codegen)
        return
    make, place = (deque_iterator_at if over.at_first is not None else iterator_at), self.index
    if over.length is not None:
        make, place = reversed_at, over.length - 1 - self.index
    codegen.add_push_null(lambda: codegen.load_import_from(__name__, make.__name__))
    codegen(over.container)
    codegen.append_output(codegen.create_load_const(place))
    codegen.extend_output(create_call_function(2, False))


def _end(self: Any, _codegen: Any) -> None:
    self.stop = self.start + self.step * self.len


def _next(self: Any, tx: Any, *args: Any) -> None:
    given = args[0].realize()
    if isinstance(given, BaseListVariable):
        raise_observed_exception(TypeError, tx, args=[f"'{given.python_type().__name__}' object is not an iterator"])
