"""Write vanished.txt: what Dynamo has in torch 2.13 and has no longer in a later version, each with the first that lacks it.

    .venv/bin/python -m tests.torch_private.vanished build/matrix/2.14.1/venv/bin/python build/matrix/2.15.0/venv/bin/python

Run by the Python of the pinned torch, with those of the later ones in order. A line is a word that nothing in Dynamo is called
any more, or a class, a function or a method of a class that is gone from its place, while its name goes on elsewhere.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pathlib
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Iterator

import torch._dynamo

FILE = pathlib.Path(__file__).with_suffix(".txt")
_LEFT_OUT = ("_dynamo.backends", "_dynamo.debug_utils", "_dynamo.polyfills", "_dynamo.repro", "_dynamo.test")
_OF_EVERY_CLASS = {"__annotations__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__weakref__"}


def vanished() -> dict[str, str]:
    """vanished.txt: name -> the first version without it."""
    return dict(line.split() for line in FILE.read_text().splitlines())


def main() -> None:
    """Without arguments: print what there is here, for another one to compare."""
    here = surface()
    if len(sys.argv) == 1:
        print(json.dumps([torch.__version__.rpartition(".")[0], here]))
        return
    later = [json.loads(_output(python)) for python in sys.argv[1:]]
    gone: dict[str, str] = {}
    for version, there in reversed(later):
        gone |= dict.fromkeys(_missing(here, there), version)
    FILE.write_text("".join(f"{name} {gone[name]}\n" for name in sorted(gone)))


def _output(python: str) -> str:
    return subprocess.run([python, __file__], check=True, stdout=subprocess.PIPE, text=True).stdout


def _missing(here: dict[str, list[str]], there: dict[str, list[str]]) -> Iterator[str]:
    words = set(here["words"]) - set(there["words"])
    places = set(here["owned"]) - set(there["reachable"])
    yield from words
    yield from (place for place in places if not words & set(place.split(".")) and place.rpartition(".")[0] not in places)


def surface() -> dict[str, list[str]]:
    """owned: classes, functions, and what classes define; reachable: with what they inherit; words: the last parts of these."""
    owned: list[str] = []
    reachable: list[str] = []
    for module in _modules():
        for name, value in vars(module).items():
            if not (inspect.isclass(value) or inspect.isfunction(value)) or value.__module__ != module.__name__:
                continue
            owned.append(f"{module.__name__}.{name}")
            if inspect.isclass(value):
                owned += _members(f"{module.__name__}.{name}", [value])
                reachable += _members(f"{module.__name__}.{name}", value.__mro__[:-1])
    reachable += owned
    words = {word for name in reachable for word in name.split(".")}
    return {"owned": sorted(owned), "reachable": sorted(reachable), "words": sorted(words)}


def _members(owner: str, classes: list[type] | tuple[type, ...]) -> Iterator[str]:
    return (f"{owner}.{name}" for kind in classes for name in vars(kind) if name not in _OF_EVERY_CLASS)


def _modules() -> Iterator[object]:
    for found in pkgutil.walk_packages(torch._dynamo.__path__, "torch._dynamo."):
        if not any(part in found.name for part in _LEFT_OUT):
            yield importlib.import_module(found.name)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
