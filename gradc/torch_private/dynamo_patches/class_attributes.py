"""Attributes of classes: compiled code serves as long as all that it may have read of its classes is found where it was found.

Dynamo guards a class attribute where it found it: not that no nearer class overrides it since, and of a method nothing. Here
one guard asks for all classes that a function met. The names are those in the code that was traced, and of special methods all:
what Python calls for an operator, a ``with`` or a ``len`` stands in no code. Of plain values only the place is looked at, as
Dynamo guards the value itself; so a count that each step writes to a class changes nothing. The same guard looks at the code of
functions that were traced into, which is replaced without a change of the class.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables import object_protocol
from torch._dynamo.variables.user_defined import UserDefinedClassVariable, UserDefinedObjectVariable

from gradc.torch_private.classes import Compare, Held, Written, is_mutable
from gradc.torch_private.dynamo_names import SLOTS_OF_CLASSES
from gradc.torch_private.dynamo_patches.while_tracing import noted, noting
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import after, around, before

MakeGuard = Callable[[Callable[[type], list[types.FunctionType] | None]], Any]

_DEFINITIONS = "gradc_definitions"
_known_slots: dict[Any, Any] = {}
_OF_MODULES = ("forward", "_call_impl")  # which Dynamo looks up without going through the code that does


def guard_class_attributes(make_guard: MakeGuard) -> Patch:
    """One guard for what a function read of its classes.

    ``make_guard`` makes it of what looks at a class that has changed: None where what was read is no longer there, or else the
    functions that are new there. Classes are given to its ``add``, functions to ``add_function``. Where that is None, all are
    looked at in each call.
    """
    return Patch(
        "guard_class_attributes",
        "A method that is replaced, and an attribute that a nearer class overrides, are no longer what Dynamo found.",
        (
            after(OutputGraph, "init_ambient_guards", noting(_DEFINITIONS, lambda graph: Definitions(graph, make_guard))),
            after(UserDefinedObjectVariable, "__init__", _object),
            after(UserDefinedClassVariable, "__init__", _class),
            before(UserDefinedObjectVariable, "lookup_class_mro_attr", _look_up),
            *(around(module, name, _slots) for module, name in SLOTS_OF_CLASSES),
        ),
    )


def _object(_: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    is_of_dynamo = isinstance(self.value, torch.fx.GraphModule) and not self.source  # a branch of torch.cond
    if not is_of_dynamo and (definitions := definitions_now()) is not None:
        definitions.meet(type(self.value), Compare.CODE if self.source else Compare.FUNCTION)


def _class(_: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(self.value, type) and (definitions := definitions_now()) is not None:
        definitions.meet(self.value)


def _look_up(self: Any, name: str) -> None:
    if (definitions := definitions_now()) is not None:
        definitions.names.add(name)


def _slots(original: Any, _cls: type) -> Any:
    """What follows from which special methods a class has: as it is now, not as it was when Dynamo first met it."""
    slots = original, object_protocol.get_type_slots(_cls)
    if slots not in _known_slots:
        _known_slots[slots] = original.__wrapped__(_cls)
    return _known_slots[slots]


def definitions_now() -> Definitions | None:
    """Those of the function that is traced now; None while nothing is, or not for gradc."""
    definitions: Definitions | None = noted(_DEFINITIONS)
    return definitions


class Definitions:
    """The classes that one function met while it was traced, names that were looked up in them, and functions traced into."""

    def __init__(self, graph: OutputGraph, make_guard: MakeGuard) -> None:
        self.names = set(_OF_MODULES)
        self._graph, self._make_guard = weakref.proxy(graph), make_guard
        self._met: dict[int, tuple[type, Compare]] = {}
        self._traced: dict[int, tuple[types.FunctionType, set[Any]]] = {}

    def meet(self, cls: type, compare: Compare = Compare.CODE) -> None:
        """What was made inside has no source, and so no guard of Dynamo's: not even on what a method closes over."""
        if is_mutable(cls) and self._met.get(id(cls), (cls, Compare.CODE))[1] is Compare.CODE:
            self._met[id(cls)] = cls, compare
            if is_mutable(type(cls)):
                self._met[id(type(cls))] = type(cls), Compare.VALUE

    def trace(self, function: types.FunctionType, source: Any) -> None:
        """``source``: by which Dynamo guards the defaults; None if it guards nothing of the function."""
        self._traced.setdefault(id(function), (function, set()))[1].add(source)

    def guard(self, builder: Any, guard: Any) -> None:
        """Add the guard: Dynamo calls this when all is traced."""
        unguarded = list(self._unguarded())
        if not self._met and not unguarded:
            return
        held, written = Held(frozenset(self.names.union(*map(_names_in, self._all_codes())))), Written()
        native = self._make_guard(functools.partial(_look, held, weakref.WeakSet()))
        for cls, compare in self._met.values():
            held.add(cls, compare)
            if native is not None:
                native.add(cls)
        for function, are_defaults_read in unguarded:
            (native or written).add_function(function, are_defaults_read)
        are_same = native.ask if native else lambda _: held.is_in_all() and written.are_same()
        builder.guard_manager.root.add_lambda_guard(are_same, ["what was read of classes is where it was"], guard.user_stack)

    def _unguarded(self) -> Iterator[tuple[types.FunctionType, bool]]:
        """The functions whose code Dynamo does not guard, and whether their defaults are not guarded, either."""
        guarded = {each.originating_source for each in self._graph.guards if each.create_fn is GuardBuilder.CLOSURE_MATCH}
        for function, sources in self._traced.values():
            if not sources <= guarded:
                yield function, None in sources

    def _all_codes(self) -> Iterator[types.CodeType]:
        """What was traced, and what Python may have called of metaclasses, as an ``__instancecheck__``."""
        yield from dict.fromkeys(self._graph.traced_code)
        for cls, compare in self._met.values():
            if compare is Compare.VALUE:
                yield from (value.__code__ for value in vars(cls).values() if isinstance(value, types.FunctionType))


def _look(held: Held, watched: weakref.WeakSet[types.FunctionType], cls: type) -> list[types.FunctionType] | None:
    """See ``make_guard``. A function that came to another's place has its code now: it may get another one there."""
    if not held.is_in(cls):
        return None
    new = set(held.functions_in(cls)).difference(watched)
    watched.update(new)
    return list(new)


def _names_in(code: types.CodeType) -> set[str]:
    return {*code.co_names, *(constant for constant in code.co_consts if isinstance(constant, str))}
