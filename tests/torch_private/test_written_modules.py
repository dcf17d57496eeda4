"""What compiled code writes into a module it reads at once by all names: ``X``, ``module.X``, ``globals()["X"]``."""

from __future__ import annotations

import itertools
import sys
import types
from typing import Any

import pytest
import torch

import gradc
from tests.oracle import check, leaf

THIS, SPACE, X, NEW = sys.modules[__name__], globals(), 1, 1

OTHER = types.ModuleType("tests_of_written_modules")
OTHER.module = THIS  # type: ignore[attr-defined]
sys.modules[OTHER.__name__] = OTHER
exec(
    """
Y = 1

def write(n):
    global Y
    Y = n

def read():
    return Y

def write_x(n):
    module.X = n

def read_x():
    return module.X
""",
    vars(OTHER),
)


def write_global(n: Any) -> None:
    global X
    X = n


def write_attribute(n: Any) -> None:
    THIS.X = n  # type: ignore[attr-defined]


def write_imported(n: Any) -> None:
    import tests.torch_private.test_written_modules as imported

    imported.X = n


def write_globals(n: Any) -> None:
    globals()["X"] = n


def write_dictionary(n: Any) -> None:
    SPACE["X"] = n


def write_vars(n: Any) -> None:
    vars(sys.modules[__name__])["X"] = n


def write_elsewhere(n: Any) -> None:
    OTHER.write_x(n)


def write_twice(n: Any) -> None:
    global X
    X = n + 3
    THIS.X += 1  # type: ignore[attr-defined]
    X = X * 2


WRITES = (
    *(write_global, write_attribute, write_imported, write_globals, write_dictionary, write_vars, write_elsewhere),
    write_twice,
)
READS = {
    "global": lambda: X,
    "attribute": lambda: THIS.X,  # type: ignore[attr-defined]
    "getattr": lambda: getattr(THIS, "X", 5),
    "globals": lambda: globals()["X"],
    "dictionary": lambda: SPACE["X"],
    "vars": lambda: vars(THIS)["X"],
    "elsewhere": lambda: OTHER.read_x(),
}


@pytest.mark.parametrize(("write", "read"), list(itertools.product(WRITES, READS)))
def test_a_global_that_is_written_by_one_name_is_read_by_another(write: Any, read: str) -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        before = READS[read]()
        write(n)
        return x.sin() * READS[read](), before

    def step(compile: Any, x: torch.Tensor) -> Any:
        global X
        run, seen, X = compile(calculate), [], 1
        for n in (2, 3, 3, 5):
            y, before = run(x, n)
            y.sum().backward()
            seen += [y, before, X]
        return seen

    check(step, leaf(3))


def test_globals_of_another_module() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        OTHER.Y = n  # type: ignore[attr-defined]
        y = x * OTHER.read()
        OTHER.write(n + 1)
        z = x * vars(OTHER)["Y"]
        vars(OTHER)["Y"] = n + 2
        return y * OTHER.Y + z * OTHER.read()  # type: ignore[attr-defined]

    def step(compile: Any, x: torch.Tensor) -> Any:
        run = compile(calculate)
        return [(run(x, n), OTHER.Y) for n in (2, 3, 4)]  # type: ignore[attr-defined]

    check(step, leaf(3))


def test_a_global_that_is_a_tensor() -> None:
    def calculate(x: torch.Tensor) -> Any:
        THIS.X = x.cos()  # type: ignore[attr-defined]
        write_global(X * 2)
        return x * THIS.X  # type: ignore[attr-defined]

    def step(compile: Any, x: torch.Tensor) -> Any:
        run = compile(calculate)
        for _ in range(3):
            run(x).sum().backward()
        return X

    check(step, leaf(3))


def test_one_that_is_not_there_yet() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        was_there = hasattr(THIS, "NEW")
        THIS.NEW = n  # type: ignore[attr-defined]
        return x * NEW, was_there, hasattr(THIS, "NEW"), getattr(THIS, "NEW", 7)

    def step(compile: Any, x: torch.Tensor) -> Any:
        run, seen = compile(calculate), []
        for n in (2, 2, 3):
            SPACE.pop("NEW", None)
            seen += [run(x, n), run(x, n)]
        return seen

    check(step, leaf(3))


def test_one_that_is_deleted() -> None:
    def calculate(x: torch.Tensor, n: int) -> Any:
        y = x * X
        del THIS.X  # type: ignore[attr-defined]
        try:
            y = y * THIS.X  # type: ignore[attr-defined]
        except AttributeError as error:
            said = str(error)
        there = hasattr(THIS, "X"), getattr(THIS, "X", 4)
        write_global(n)
        return y * THIS.X, there, said  # type: ignore[attr-defined]

    def step(compile: Any, x: torch.Tensor) -> Any:
        write_global(1)
        run = compile(calculate)
        return [run(x, n) for n in (2, 3, 4)]

    check(step, leaf(3))


def test_it_costs_no_graph() -> None:
    """Neither a global that is read by the name that it is written by, nor one that is an attribute of its module besides."""

    def count(x: torch.Tensor) -> torch.Tensor:
        write_global(X + 1)
        OTHER.Y += X  # type: ignore[attr-defined]
        return x * THIS.X * OTHER.read()  # type: ignore[attr-defined]

    gradc.counters.clear()
    gradc.compile(count, fullgraph=True)(torch.ones(3))
    assert not gradc.counters["uncompiled"]


def test_what_ends_a_graph_is_counted() -> None:
    def calculate(x: torch.Tensor, n: int) -> torch.Tensor:
        SPACE["X"] = n
        return x * X

    gradc.counters.clear()
    gradc.compile(calculate)(torch.ones(3), 2)
    (reason,) = gradc.counters["uncompiled"]
    assert reason == "gradc: dictionary of attributes"
