"""gradc/_C.pyi says what the extension has: every name stands in both, the members of classes too."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

import gradc
from gradc import native

CALLS = ("__init__", "__call__", "__len__")


def is_public(name: str) -> bool:
    return not name.startswith("_") or name in CALLS


def in_stub(body: list[ast.stmt]) -> dict[str, set[str] | None]:
    """Name -> names of its members, None for what is not a class."""
    names: dict[str, set[str] | None] = {}
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            names[statement.name] = set(in_stub(statement.body))
        elif isinstance(statement, ast.FunctionDef):
            names[statement.name] = None
        elif isinstance(statement, ast.AnnAssign | ast.Assign):
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            assert isinstance(target, ast.Name)
            names[target.id] = None
    return names


def members(found: type) -> set[str]:
    if hasattr(found, "__members__"):
        return set(found.__members__)
    own = {} if issubclass(found, Exception) else vars(found)
    return {name for name in own if is_public(name)}


def in_module(module: Mapping[str, Any]) -> dict[str, set[str] | None]:
    return {name: members(one) if isinstance(one, type) else None for name, one in module.items() if is_public(name)}


def test_stub_and_extension_have_the_same_names():
    if not native.is_built():
        pytest.skip("the extension was not built")
    stub = pathlib.Path(gradc.__file__).with_name("_C.pyi").read_text()
    assert in_stub(ast.parse(stub).body) == in_module(vars(native.extension))


def test_a_name_that_native_has_not_is_an_error():
    with pytest.raises(AttributeError, match="module 'gradc.native' has no attribute 'extensions'"):
        native.extensions  # noqa: B018
