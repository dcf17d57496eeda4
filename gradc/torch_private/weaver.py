"""A place in Dynamo where gradc comes in is replaced once: by what asks whose the call is, and runs the rules of that place.

    before(owner, name, rule)    rule(*arguments) -> None               notes, guards, or ends the graph
    after(owner, name, rule)     rule(result, *arguments) -> result     what is returned in place of ``result``
    around(owner, name, rule)    rule(original, *arguments) -> result   calls what is there else, or does not
    instead(owner, name, rule)   rule(*arguments) -> result             calls nothing else

A rule is a change of a ``Patch``. Several at one place run in the order that ``rule_order`` states, the first around the
others, whatever patch was applied first. A rule calls its parameters as torch does: so they say what it takes torch's to be.

Whose a call is, is asked once: by default whether Dynamo traces for gradc. Where it does not, what torch had is called, with
those rules around that are ``for_others``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

from gradc.torch_private.ours import users_settings
from gradc.torch_private.patches import Method, Place, Replace
from gradc.torch_private.rule_order import in_order
from gradc.torch_private.version import is_supported

Form = Callable[[Any], tuple[Method, Callable[[Method], Any]]]

_WEAVE = "_gradc_weave"
_WEAVER = "the weaver"  # for the patch that a replacement is from: it is that of all rules of the place
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _before(rule: Method, inner: Method) -> Method:
    def call(*args: Any, **kwargs: Any) -> Any:
        rule(*args, **kwargs)
        return inner(*args, **kwargs)

    return call


def _after(rule: Method, inner: Method) -> Method:
    def call(*args: Any, **kwargs: Any) -> Any:
        return rule(inner(*args, **kwargs), *args, **kwargs)

    return call


def _instead(rule: Method, _: Method) -> Method:
    return rule


def plain(original: Any) -> tuple[Method, Callable[[Method], Any]]:
    """What is called at a place, and what puts another into the same form."""
    if isinstance(original, (staticmethod, classmethod)):
        return original.__func__, type(original)
    return original or _no_answer, lambda made: made


def _no_answer(*_: Any, **__: Any) -> None:
    """Where Dynamo has nothing: a handler that answers None is as if there were none."""


@dataclasses.dataclass(frozen=True)
class Rule(Place):
    """What gradc does at one place.

    Attributes:
        function: see the module's docstring.
        compose: (function, what is there else) -> what is called.
        scope: (*arguments) -> True if the call is gradc's; None: if Dynamo traces for gradc. One for all rules of a place.
        for_others: it is for the calls that are not gradc's.
        may_be_missing: there may be nothing at the place.
        form: how a function stands there, where that is no function or method.
    """

    function: Method
    compose: Callable[[Method, Method], Method]
    scope: Callable[..., bool] | None = None
    for_others: bool = False
    may_be_missing: bool = False
    form: Form = plain

    def missing(self) -> str:
        if not self.may_be_missing and not self.is_there:
            return str(self)
        return "" if is_supported() else self.other_signature()

    def other_signature(self) -> str:
        """The parameters that the rule takes torch's to be, in words, where they are others; else ""."""
        weave = self._weave
        there = weave.original if weave is not None else self.form(self.value or getattr(self.owner, str(self.name), None))[0]
        expected, found = _named(self.function)[self._num_own :], _parameters(there)
        has_others = any(name != other for name, other in zip(expected, found or expected) if not name.startswith("_"))
        return f"{self}({', '.join(expected)})" if has_others or (found and len(expected) > len(found)) else ""

    @property
    def _num_own(self) -> int:
        """How many parameters come before torch's."""
        return 0 if self.compose in (_before, _instead) else 1

    def apply(self, patch: str) -> None:
        if self._weave is None:
            self._replace.apply(_WEAVER)
        if (weave := self._weave) is not None:
            weave.add(patch, self)

    def undo(self, patch: str) -> None:
        weave = self._weave
        if weave is not None and weave.has_only(patch, self):
            self._replace.undo(_WEAVER)
        elif weave is not None:
            weave.remove(patch, self)

    def is_applied(self, patch: str) -> bool:
        weave = self._weave
        return weave is not None and weave.has(patch, self)

    def key(self, patch: str) -> tuple[str, str, bool]:
        """By which it is known, also where its module was loaded again."""
        return patch, self.function.__qualname__, self.for_others

    @property
    def _replace(self) -> Replace:
        return Replace(self.owner, self.name, self._woven, self.may_be_missing)

    def _woven(self, original: Any) -> Any:
        function, put_back = self.form(original)
        weave = Weave(self.owner, self.name, function)
        made = put_back(_asking_whose(weave, self.scope))
        setattr(made, _WEAVE, weave)
        return made

    @property
    def _weave(self) -> Weave | None:
        """The one of this place, also if somebody else wrapped it since."""
        current = self.value
        while current is not None:
            weave: Weave | None = getattr(current, _WEAVE, None)
            if weave is not None and weave.owner is self.owner and weave.name == self.name:
                return weave
            current = getattr(current, "__wrapped__", None)
        return None


before = functools.partial(Rule, compose=_before)
after = functools.partial(Rule, compose=_after)
around = functools.partial(Rule, compose=functools.partial)
instead = functools.partial(Rule, compose=_instead)


class Weave:
    """The rules that run at a place now, around what torch has there.

    Attributes:
        ours: what is called for gradc.
        others: what is called else.
    """

    def __init__(self, owner: Any, name: Any, original: Method) -> None:
        self.owner, self.name, self.original = owner, name, original
        self.ours = self.others = original
        self._rules: dict[tuple[str, str, bool], Rule] = {}  # in their order

    def has(self, patch: str, rule: Rule) -> bool:
        return rule.key(patch) in self._rules

    def has_only(self, patch: str, rule: Rule) -> bool:
        return [*self._rules] == [rule.key(patch)]

    def add(self, patch: str, rule: Rule) -> None:
        self._set({**self._rules, rule.key(patch): rule})

    def remove(self, patch: str, rule: Rule) -> None:
        self._set({key: each for key, each in self._rules.items() if key != rule.key(patch)})

    def _set(self, rules: dict[tuple[str, str, bool], Rule]) -> None:
        order = in_order(Place(self.owner, self.name), {patch for patch, *_ in rules})
        self._rules = dict(sorted(rules.items(), key=lambda row: order.index(row[0][0])))
        self.ours, self.others = self._composed(for_others=False), self._composed(for_others=True)

    def _composed(self, *, for_others: bool) -> Method:
        call = self.original
        for rule in reversed(self._rules.values()):
            if rule.for_others is for_others:
                call = rule.compose(rule.function, call)
        return call


def _asking_whose(weave: Weave, scope: Callable[..., bool] | None) -> Method:
    settings_now = users_settings.get

    @functools.wraps(weave.original)
    def call_while_tracing(*args: Any, **kwargs: Any) -> Any:
        return (weave.others if settings_now() is None else weave.ours)(*args, **kwargs)

    if scope is None:
        return call_while_tracing

    @functools.wraps(weave.original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (weave.ours if scope(*args, **kwargs) else weave.others)(*args, **kwargs)

    return call


def _parameters(function: Any) -> list[str]:
    """The names of those that have a place; none where it takes any, or is written in C++."""
    try:
        kinds = [each.kind for each in inspect.signature(function, follow_wrapped=False).parameters.values()]
    except (TypeError, ValueError):
        return []
    return [] if inspect.Parameter.VAR_POSITIONAL in kinds else _named(function)


def _named(function: Any) -> list[str]:
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    return [each.name for each in parameters if each.kind in _POSITIONAL]
