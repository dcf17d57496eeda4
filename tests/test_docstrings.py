"""What users may call, read or catch has a docstring with what they need, and an entry in docs/api.md.

That is: a first sentence; each argument by its name, what comes back, what is raised; of a class each attribute; and for what
takes or gives tensors, their dtypes and shapes or strides.
"""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

import gradc
import gradc.errors
import gradc.pytest_plugin
from gradc.config import DEFAULTS
from gradc.journal import Cut, Fallback, Graph
from gradc.parity.differences import Difference
from gradc.parity.location import Location
from gradc.parity.report import Report
from gradc.policy.ab_timer import Verdict
from gradc.reporting.explain import Explanation, GraphBreak
from gradc.reporting.model import StepReport
from gradc.traces.captured import CapturedProgram

PACKAGE = pathlib.Path(gradc.__file__).parent
MODULES = (gradc, gradc.testing, gradc.compiled_autograd)
NAMES = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
FUNCTIONS = {name: value for name, value in NAMES.items() if inspect.isfunction(value)} | {
    "gradc.config.Config.patch": type(gradc.config).patch,
    "gradc.pytest_plugin.assert_parity": inspect.unwrap(gradc.pytest_plugin.assert_parity),
}
RETURNED = {f"{kind.__module__}.{kind.__name__}": kind for kind in (Report, Explanation, StepReport, CapturedProgram)}
PARTS = {
    f"{kind.__module__}.{kind.__name__}": kind for kind in (Difference, Location, GraphBreak, Graph, Cut, Fallback, Verdict)
}
ERRORS = {
    f"gradc.errors.{name}": value
    for name, value in vars(gradc.errors).items()
    if isinstance(value, type) and value.__module__ == "gradc.errors"
}
OBJECTS = {"gradc.config.Config": type(gradc.config), "gradc.journal.Counters": type(gradc.counters)}
RAISE_NOTHING = {
    "gradc.disable",
    "gradc.list_backends",
    "gradc.patches",
    "gradc.pytest_plugin.assert_parity",  # gives a function
    "gradc.reset",
    "gradc.tracing",
    *(f"gradc.compiled_autograd.{name}" for name in ("disable", "last_graph", "recordings", "reset")),
}
OF_TENSORS = ("gradc.compile", "gradc.check", "gradc.explain", "gradc.register_backend", "gradc.compiled_autograd.enable")


def doc_of(value: Any) -> str:
    return inspect.getdoc(value) or ""


def section(doc: str, title: str) -> str:
    """The indented lines under ``title:``."""
    found = re.search(rf"^{title}:\n((?:(?:    .*)?\n?)*)", doc, re.MULTILINE)
    return found[1] if found else ""


def described(doc: str, title: str) -> set[str]:
    """The names that a section describes: ``step, args: ...``."""
    lists = re.findall(r"^    ([\w, ]+): ", section(doc, title), re.MULTILINE)
    return {name for names in lists for name in re.split(r", ", names)}


def lacks(value: Any, raises: bool, is_of_tensors: bool) -> Iterator[str]:
    """What the docstring of a function is without."""
    doc, signature = doc_of(value), inspect.signature(value)
    first = doc.partition("\n\n")[0]
    if not re.fullmatch(r"[A-Z`].*[.:]", first, re.DOTALL):
        yield "a first sentence"
    given = {name for name in signature.parameters if name not in ("self", "request")}
    yield from sorted(name for name in given - described(doc, "Arguments") if f"``{name}``" not in first)
    if signature.return_annotation not in (None, "None", "Iterator[None]") and not is_told(doc):
        yield "what it returns"
    if raises and not section(doc, "Raises"):
        yield "what it raises"
    if is_of_tensors and not re.search(r"dtype", doc):
        yield "dtypes"
    if is_of_tensors and not re.search(r"shape|strides", doc):
        yield "shapes"


def is_told(doc: str) -> bool:
    """What is for a ``with``, and a fixture, may say it in the first sentence."""
    return bool(section(doc, "Returns")) or "``with``" in doc or doc.startswith("``")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_a_reader_needs(name: str) -> None:
    assert [*lacks(FUNCTIONS[name], name not in RAISE_NOTHING, name in OF_TENSORS)] == []


@pytest.mark.parametrize("name", RETURNED | PARTS)
def test_what_is_returned_says_what_each_attribute_is(name: str) -> None:
    kind = (RETURNED | PARTS)[name]
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields - described(doc_of(kind), "Attributes") == set()


@pytest.mark.parametrize("name", RETURNED)
def test_what_is_returned_explains_its_methods(name: str) -> None:
    kind, fields = RETURNED[name], {field.name for field in dataclasses.fields(RETURNED[name])}
    public = [value for key, value in vars(kind).items() if not key.startswith("_") and key not in fields]
    assert [value for value in public if not doc_of(value)] == []


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_when_it_comes(name: str) -> None:
    assert len(vars(ERRORS[name])["__doc__"].split()) > 6


def test_the_settings_are_explained_with_their_defaults() -> None:
    told = section(doc_of(type(gradc.config)), "Attributes")
    texts = {name: re.search(rf"^    {name}: (.*?)(?=^    \w+: |\Z)", told, re.DOTALL | re.MULTILINE) for name in DEFAULTS}
    assert [name for name, text in texts.items() if text is None] == []
    assert [name for name, text in texts.items() if "default" not in text[1]] == []


def test_everything_is_in_the_api() -> None:
    """What a line beginning with ::: names exists, or `make docs` fails."""
    page = (PACKAGE.parent / "docs" / "api.md").read_text()
    entries = re.findall(r"^::: (\S+)$", page, re.MULTILINE)
    by_content = {"gradc.compiled_autograd", "gradc.config", "gradc.counters", "gradc.testing"}
    under_a_shorter_name = {f"gradc.errors.{name}" for name in gradc.__all__} | {"gradc.config.Config.patch"}
    expected = {*NAMES, *FUNCTIONS, *RETURNED, *PARTS, *OBJECTS, *ERRORS} - by_content - under_a_shorter_name
    assert sorted(expected) == sorted(entries)


EXAMPLES = [path for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_print_what_they_say(path: pathlib.Path) -> None:
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(importlib.import_module(name)):
        runner.run(example, clear_globs=False)  # Dynamo puts names there, and takes them away itself
    assert runner.tries > 0 and runner.failures == 0


def test_a_docstring_without_what_a_reader_needs_is_seen() -> None:
    def function(x: int, step: int) -> int:
        """Add ``x``

        Arguments:
            x: a number.
        """

    assert [*lacks(function, True, True)] == [
        "a first sentence",
        "step",
        "what it returns",
        "what it raises",
        "dtypes",
        "shapes",
    ]
