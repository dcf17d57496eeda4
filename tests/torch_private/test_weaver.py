"""Each place in Dynamo is replaced once; the rules there run in the stated order, and not for others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import gradc
from gradc.errors import GradcError
from gradc.torch_private import rule_order
from gradc.torch_private.dynamo_patches.function_names import _getter
from gradc.torch_private.ours import users_settings
from gradc.torch_private.patches import Patch, Patches, Place
from gradc.torch_private.version import PINNED
from gradc.torch_private.weaver import Rule, after, around, before, instead


class Dynamo:
    """Stands in for a class of Dynamo's."""

    def trace(self, words: list[str]) -> str:
        words.append("dynamo")
        return " ".join(words)

    @staticmethod
    def create(word: str) -> str:
        return f"created {word}"

    @classmethod
    def named(cls, word: str) -> str:
        return f"{cls.__name__} {word}"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = dict(vars(Dynamo))
    yield
    for name in ("trace", "create", "named"):
        setattr(Dynamo, name, before[name])
    for name in vars(Dynamo).keys() - before.keys():
        delattr(Dynamo, name)


@pytest.fixture
def tracing() -> Iterator[None]:
    """As if Dynamo traced for gradc."""
    token = users_settings.set({})
    yield
    users_settings.reset(token)


def patch(name: str, *rules: Rule) -> Patch:
    return Patch(name, "Too quiet.", rules)


def saying(word: str) -> Rule:
    def say(self: Any, words: list[str]) -> None:
        words.append(word)

    return before(Dynamo, "trace", say)


def ordered(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setitem(rule_order.ORDER, str(Place(Dynamo, "trace")), dict.fromkeys(names, ""))


def test_each_kind_of_rule(tracing: None) -> None:
    def shout(result: str, self: Any, words: list[str]) -> str:
        return f"{result}!"

    def twice(original: Any, self: Any, words: list[str]) -> str:
        return f"{original(self, words)}, {original(self, words)}"

    patch("first", saying("first")).apply()
    assert Dynamo().trace([]) == "first dynamo"
    patch("first", saying("first")).undo()
    patch("shout", after(Dynamo, "trace", shout)).apply()
    assert Dynamo().trace([]) == "dynamo!"
    patch("shout", after(Dynamo, "trace", shout)).undo()
    patch("twice", around(Dynamo, "trace", twice)).apply()
    assert Dynamo().trace([]) == "dynamo, dynamo dynamo"
    patch("twice", around(Dynamo, "trace", twice)).undo()
    patch("instead", instead(Dynamo, "trace", lambda self, words: "nothing")).apply()
    assert Dynamo().trace([]) == "nothing"


def test_rules_run_in_the_stated_order_whatever_was_applied_first(tracing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ordered(monkeypatch, "a", "b", "c")
    patches = {name: patch(name, saying(name)) for name in "cab"}
    original = vars(Dynamo)["trace"]
    for each in patches.values():
        each.apply()
        each.apply()
    assert Dynamo().trace([]) == "a b c dynamo" and vars(Dynamo)["trace"].__wrapped__ is original
    patches["b"].undo()
    assert Dynamo().trace([]) == "a c dynamo" and not patches["b"].is_applied and patches["a"].is_applied
    patches["b"].apply()
    assert Dynamo().trace([]) == "a b c dynamo"
    Patches(patches.values()).undo()
    assert vars(Dynamo)["trace"] is original


def test_others_are_as_without_gradc_but_for_what_is_for_them(tracing: None) -> None:
    for_others = patch("others", before(Dynamo, "trace", lambda self, words: words.append("others"), for_others=True))
    both = Patches((patch("ours", saying("ours")), for_others))
    both.apply()
    assert Dynamo().trace([]) == "ours dynamo"
    token = users_settings.set(None)
    assert Dynamo().trace([]) == "others dynamo"
    both[1].undo()
    assert Dynamo().trace([]) == "dynamo"
    users_settings.reset(token)


def test_a_scope_of_its_own() -> None:
    patch(
        "short", before(Dynamo, "trace", lambda self, words: words.append("ours"), scope=lambda self, words: not words)
    ).apply()
    assert (Dynamo().trace([]), Dynamo().trace(["long"])) == ("ours dynamo", "long dynamo")


def test_static_and_class_methods_stay_so_and_what_is_missing_answers_nothing(tracing: None) -> None:
    changes = Patches(
        (
            patch("create", after(Dynamo, "create", lambda result, word: result.upper())),
            patch("named", after(Dynamo, "named", lambda result, cls, word: f"{result} of {cls.__name__}")),
            patch("gone", before(Dynamo, "gone", lambda self: None, may_be_missing=True)),
        )
    )
    changes.apply()
    assert (Dynamo.create("x"), Dynamo().create("x"), Dynamo.named("y")) == ("CREATED X", "CREATED X", "Dynamo y of Dynamo")
    assert Dynamo().gone() is None  # type: ignore[attr-defined]
    changes.undo()
    assert isinstance(vars(Dynamo)["create"], staticmethod) and not hasattr(Dynamo, "gone")


@dataclasses.dataclass
class Entry:
    """As Dynamo's tables have methods, since torch 2.14."""

    getter: Any
    setter: Any


def test_a_form_of_its_own(tracing: None) -> None:
    table = {"name": (entry := Entry(lambda it: f"the name of {it}", None))}
    rule = after(table, "name", lambda result, it: result.upper(), form=_getter)
    patch("name", rule).apply()
    assert table["name"].getter("x") == "THE NAME OF X" and table["name"].setter is None
    patch("name", rule).undo()
    assert table["name"] is entry


def test_somebody_else_wrapped_it_since(tracing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ordered(monkeypatch, "a", "b")
    a, b = (patch(name, saying(name)) for name in "ab")
    b.apply()
    woven = Dynamo.trace

    def trace(self: Any, words: list[str]) -> str:
        return f"({woven(self, words)})"

    trace.__wrapped__ = woven  # type: ignore[attr-defined]
    Dynamo.trace = trace  # type: ignore[method-assign]
    a.apply()
    assert Dynamo().trace([]) == "(a b dynamo)"
    a.undo()
    assert Dynamo().trace([]) == "(b dynamo)"
    with pytest.raises(GradcError, match="cannot be undone"):
        b.undo()


def test_the_order_of_rules_at_one_place_is_stated_for_all() -> None:
    rules: dict[str, list[tuple[Place, str]]] = {}
    for each in gradc.patches():
        for rule in each.changes:
            if isinstance(rule, Rule):
                rules.setdefault(f"{id(rule.owner)} {rule.name}", []).append((rule, each.name))
    unstated = [(str(found[0][0]), {name for _, name in found}) for found in rules.values()]
    assert [row for row, found in zip(unstated, rules.values()) if not rule_order.is_stated(found[0][0], row[1])] == []
    assert len(rules) > 200


def test_rules_of_one_place_ask_one_question() -> None:
    scopes: dict[str, set[Any]] = {}
    for each in gradc.patches():
        for rule in each.changes:
            if isinstance(rule, Rule):
                scopes.setdefault(f"{id(rule.owner)} {rule.name}", set()).add(rule.scope)
    assert [place for place, found in scopes.items() if len(found) > 1] == []


def test_parameters_that_torch_has_not_are_told() -> None:
    rule = before(Dynamo, "trace", lambda self, sentence: None)
    assert rule.other_signature() == f"{rule}(self, sentence)" and saying("x").other_signature() == ""
    assert before(Dynamo, "trace", lambda self, *rest: None).other_signature() == ""
    assert before(Dynamo, "trace", lambda self, words, more: None).other_signature() != ""


@pytest.mark.skipif(not torch.__version__.startswith(PINNED), reason="parameters are those of the pinned torch")
def test_rules_call_their_parameters_as_torch_does() -> None:
    rules = [rule for each in gradc.patches() for rule in each.changes if isinstance(rule, Rule)]
    assert [other for rule in rules if (other := rule.other_signature())] == [] and len(rules) > 200
