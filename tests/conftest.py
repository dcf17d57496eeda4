"""Options and fixtures for every test: the compiler under test, the cases of the day, and a clean slate around each test."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch

os.environ.setdefault("GRADC_COMPILE_SECONDS", "none")  # read when gradc is imported: what is counted hangs on no clock
os.environ.setdefault("GRADC_COMPARE_WITH_EAGER", "0")
os.environ.setdefault("GRADC_VERIFY", "1")  # read when gradc is imported: every Program made in a test is verified

from tests import compilers, drawn


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compiler", default="gradc", help="what to compare with eager (tests/compilers.py)")
    parser.addoption("--day", help="run a part of the tests that take long, by this number or today's (tests/drawn.py)")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.day is not None:
        config.option.day = drawn.day_of(config.option.day)
    logging.getLogger("torch.__trace").setLevel(logging.CRITICAL)  # or pytest prints thousands of lines at each failure


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.day is not None:
        items[:], others = drawn.select(items, config.option.day, drawn.durations())
        config.hook.pytest_deselected(items=others)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.option.day is not None:
        terminalreporter.write_line(f"The cases of day {config.option.day}: --day {config.option.day} runs them again.")


@pytest.fixture
def of_the_day(request: pytest.FixtureRequest) -> Callable[[Iterable[int], int], list[int]]:
    """(numbers, n) -> of these numbers one in n, where only a part of the cases is run; else all."""
    return lambda those, n: drawn.numbers(those, n, request.config.option.day)


@pytest.fixture
def compiler(request: pytest.FixtureRequest) -> compilers.Compiler:
    """The compiler under test."""
    return compilers.find(request.config.getoption("--compiler"))


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    """Each test starts from, and leaves behind, torch's default modes and one thread."""
    torch.set_num_threads(1)
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_autocast_enabled("cpu", False)
    torch.use_deterministic_algorithms(False)
    torch.set_anomaly_enabled(False)
    torch.compiler.reset()


@pytest.fixture
def nothing_captured() -> None:
    """Nothing was captured before by compiled autograd, and nothing counted."""
    import gradc

    gradc.compiled_autograd.reset()
    gradc.counters.clear()
