"""Modules whose name passes on: functions read their own globals, and ``import`` finds what has the name now."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle import check, leaf

NAME = "gradc_test_of_one_name"
SOURCE = """
import torch
number = {value}
scale = torch.tensor([{value}.0])
count = 0

def doubled(x):
    return x * 2

def multiplied(x):
    global count
    return doubled(x) * scale * number

def counted(x):
    global count
    count += 1
    return multiplied(x) + count

class Layer(torch.nn.Module):
    def forward(self, x):
        return x * number + scale
"""


def loaded(value: int) -> Any:
    module = types.ModuleType(NAME)
    sys.modules[NAME] = module
    exec(SOURCE.format(value=value), vars(module))  # as importlib does
    return module


def register(*modules: Any) -> None:
    for module in modules:
        sys.modules[NAME] = module


def forget(*modules: Any) -> None:
    del sys.modules[NAME]


CALLS: dict[str, Callable[[Any, Tensor], Any]] = {
    "function": lambda module, x: module.multiplied(x),
    "written global": lambda module, x: (module.counted(x), module.count),
    "method": lambda module, x: module.Layer()(x),
}


@pytest.mark.parametrize("then", [register, forget])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_globals_are_those_of_the_function(call: Callable[[Any, Tensor], Any], then: Callable[..., None]) -> None:
    """Dynamo took those of the module that has the name: another tensor, and silently another gradient."""

    def step(compile: Any, x: Tensor) -> Any:
        first, second = loaded(2), loaded(5)
        seen = list[Any]()
        compiled = [compile(lambda x: call(first, x) if x.requires_grad else None), compile(lambda x: call(second, x))]
        for written in ({}, {"number": 7}, {"scale": torch.tensor([3.0])}):
            vars(first).update(written)
            seen += [run(x) for run in compiled]
        then(second, first)
        seen += [run(x) for run in compiled]
        vars(second).update(scale=torch.tensor([4.0]))
        return seen, [run(x) for run in compiled]

    check(step, leaf(3), allow_fallback=True)


def test_a_file_that_is_loaded_again_is_another_module() -> None:
    """The second function read the globals of the first one's module: a wrong gradient, in all versions of torch."""

    def step(compile: Any, x: Tensor) -> Any:
        seen = list[Any]()
        for value in (2, 5, 6):
            module = loaded(value)
            run = compile(lambda x, module=module: module.multiplied(x) + 1)
            seen.append(run(x))
            module.scale = torch.tensor([value + 20.0])
            seen.append(run(x))
        return seen

    check(step, leaf(3), allow_fallback=True)


def test_functions_of_one_code_read_their_own_globals() -> None:
    """They were one to Dynamo, which guards a function by its code."""

    def step(compile: Any, x: Tensor) -> Any:
        code = loaded(1).multiplied.__code__
        functions = [types.FunctionType(code, vars(loaded(value))) for value in (2, 5, 7)]
        run = compile(lambda x, function: function(x).sum())
        return [run(x, function) for _ in range(2) for function in functions]

    check(step, leaf(3), allow_fallback=True)


def imported(x: Tensor) -> Tensor:
    import gradc_test_of_one_name as module  # type: ignore[import-not-found]

    return module.multiplied(x) * module.number


def imported_by_names(x: Tensor) -> Tensor:
    from gradc_test_of_one_name import multiplied, number

    return multiplied(x) * number


@pytest.mark.parametrize("function", [imported, imported_by_names])
def test_import_finds_what_has_the_name_now(function: Callable[[Tensor], Tensor]) -> None:
    """What it found while tracing held for all later calls."""

    def step(compile: Any, x: Tensor) -> Any:
        run, seen = compile(function), list[Any]()
        for value in (2, 5, 2):
            loaded(value)
            seen += [run(x), run(x)]
        del sys.modules[NAME]
        with pytest.raises(ModuleNotFoundError):
            run(x)
        return seen

    check(step, leaf(3), allow_fallback=True)


@pytest.fixture(autouse=True)
def nothing_registered() -> Any:
    yield
    sys.modules.pop(NAME, None)
