"""Classes that are registered with an abstract one: ``isinstance`` answers another thing from then on."""

from __future__ import annotations

import abc
import types
import typing
import weakref
from collections.abc import Iterator
from typing import Any

from torch._dynamo.source import GlobalStateSource
from torch._dynamo.variables.builtin import BuiltinVariable

from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import after

_REGISTRATIONS = "gradc_registrations"


def guard_registered_classes() -> Patch:
    """Guard what abstract classes say of others: asked again only where something was registered since, with any of them."""
    return Patch(
        "guard_registered_classes",
        "Dynamo asks an abstract class while it traces which others are registered with it, and never again.",
        (
            after(BuiltinVariable, "call_isinstance", _of_object),
            after(BuiltinVariable, "call_issubclass", _of_class),
        ),
    )


def _of_object(answer: Any, self: Any, tx: Any, arg: Any, isinstance_type_var: Any) -> Any:
    _guard(tx.output, arg.python_type(), isinstance_type_var.as_python_constant())
    return answer


def _of_class(answer: Any, self: Any, tx: Any, left_ty: Any, right_ty: Any) -> Any:
    if left_ty.is_python_constant() and right_ty.is_python_constant():
        _guard(tx.output, left_ty.as_python_constant(), right_ty.as_python_constant())
    return answer


def _guard(output: Any, cls: type, against: Any) -> None:
    for abstract in _abstract_in(against):
        registrations = vars(output).setdefault(_REGISTRATIONS, _Registrations())
        registrations.add(cls, abstract)
        output.guards.add(registrations.as_guard)


def _abstract_in(classes: Any) -> Iterator[abc.ABCMeta]:
    if isinstance(classes, tuple | types.UnionType):
        for each in classes if isinstance(classes, tuple) else typing.get_args(classes):
            yield from _abstract_in(each)
    elif isinstance(classes, abc.ABCMeta):
        yield classes


class _Registrations:
    """What abstract classes said of others, when so much was registered with any: none of them is kept alive."""

    def __init__(self) -> None:
        self.as_guard = GlobalStateSource().make_guard(self._guard)
        self._answers: dict[tuple[int, int], tuple[weakref.ref[type], weakref.ref[type], bool]] = {}
        self._token: object = abc.get_cache_token()

    def add(self, cls: type, abstract: type) -> None:
        self._answers[id(cls), id(abstract)] = weakref.ref(cls), weakref.ref(abstract), issubclass(cls, abstract)

    def _guard(self, builder: Any, guard: Any) -> None:
        text = ["what is registered with abstract classes"]
        builder.guard_manager.root.add_lambda_guard(self._hold, text, guard.user_stack)

    def _hold(self, _: Any) -> bool:
        token = abc.get_cache_token()
        if token != self._token:
            if not all(map(_holds, self._answers.values())):
                return False
            self._token = token
        return True


def _holds(answer: tuple[weakref.ref[type], weakref.ref[type], bool]) -> bool:
    cls, abstract, was_subclass = answer[0](), answer[1](), answer[2]
    return cls is None or abstract is None or issubclass(cls, abstract) == was_subclass
