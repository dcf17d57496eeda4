"""Options and fixtures for every test: the compiler under test, and a clean slate around each test."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
import torch

os.environ.setdefault("GRADC_COMPILE_SECONDS", "none")  # read when gradc is imported: what is counted hangs on no clock
os.environ.setdefault("GRADC_COMPARE_WITH_EAGER", "0")
os.environ.setdefault("GRADC_VERIFY", "1")  # read when gradc is imported: every Program made in a test is verified

from tests import compilers


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compiler", default="gradc", help="what to compare with eager (tests/compilers.py)")


def pytest_configure() -> None:
    logging.getLogger("torch.__trace").setLevel(logging.CRITICAL)  # or pytest prints thousands of lines at each failure


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
