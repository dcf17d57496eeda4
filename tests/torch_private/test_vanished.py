"""Later versions of Dynamo lack names of the pinned one's: what uses such a name is found with the pinned one alone."""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import gradc
from gradc import torch_private
from gradc.torch_private.patches import Place
from gradc.torch_private.version import PINNED, TORCH
from tests.torch_private.vanished import vanished

VARIABLES = "torch._dynamo.variables"
# Replaced where it is there. Add to it only what has another name in dynamo_names.py, or needs no patch any more.
WITH_ANOTHER_NAME = {
    f"{VARIABLES}.user_defined.OrderedDictVariable.call_method": "ORDERED_DICT",
    f"{VARIABLES}.lists.RangeVariable.sq_contains": "answers as Python does since 2.14",
}
MAY_BE_GONE = {"_base_vt"}  # asked for with a default
IS_PINNED = ".".join(map(str, TORCH)) == PINNED.rpartition(".")[0]


def place_of(change: Place) -> str:
    """Such as ``torch._dynamo.variables.base.VariableTracker.name``; "" for items of tables."""
    if isinstance(change.owner, type):
        return f"{change.owner.__module__}.{change.owner.__qualname__}.{change.name}"
    return f"{change.owner.__name__}.{change.name}" if hasattr(change.owner, "__name__") else ""


def defining(change: Place) -> Place:
    """The same change of the class that its owner has the name from."""
    classes = change.owner.__mro__ if isinstance(change.owner, type) else ()
    return Place(next((kind for kind in classes if change.name in vars(kind)), change.owner), change.name)


def is_gone(place: str) -> bool:
    return place in vanished() or place.rpartition(".")[0] in vanished()


def words_of(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from node.value.split(".")


def test_no_patch_is_for_the_pinned_version_alone() -> None:
    gradc.patches().undo()  # what is inherited stands in the class itself while it is replaced
    changes = [change for patch in gradc.patches() for change in patch.changes if isinstance(change, Place)]
    places = {place_of(change) for each in changes for change in (each, defining(each))}
    gone = {place for place in places if is_gone(place)}
    assert gone <= set(WITH_ANOTHER_NAME), "say in torch_private/dynamo_names.py where it is in later versions"
    assert gone == set(WITH_ANOTHER_NAME) or not IS_PINNED


def test_names_that_vanish_stand_in_one_file() -> None:
    words = {name for name in vanished() if "." not in name} - MAY_BE_GONE
    files = [path for path in Path(torch_private.__path__[0]).rglob("*.py") if path.name != "dynamo_names.py"]
    found = {path.name: gone for path in files if (gone := words & set(words_of(path.read_text())))}
    assert len(files) > 60 and not found, f"{found}: not in later versions: give them a name in torch_private/dynamo_names.py"


def test_both_would_be_found() -> None:
    assert {"var_getattr", "CommonListMethodsVariable"} <= vanished().keys()
    assert is_gone(f"{VARIABLES}.lists.RangeVariable.sq_contains")
    assert not is_gone(f"{VARIABLES}.base.VariableTracker.call_method")
    assert defining(Place(OrderedDict, "pop")).owner is OrderedDict
    assert defining(Place(OrderedDict, "get")).owner is dict
    source = "import torch\nfrom torch._dynamo import one\nself.two()\nReplace(Variable, 'three', make)"
    assert {"one", "two", "three"} <= set(words_of(source))
