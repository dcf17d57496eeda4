"""A plug-in of pytest's: the fixture ``assert_parity``, and the compiler and the number of steps on the command line.

A suite asks for it, in its ``conftest.py`` at the top: ``pytest_plugins = ["gradc.pytest_plugin"]``. It is no entry point, so
that nothing changes for suites that do not.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import pytest

from gradc.parity.against import GRADC
from gradc.parity.report import Report
from gradc.testing import assert_parity as asserted


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradc", "parity with eager")
    group.addoption("--parity-against", default=GRADC, metavar="COMPILER", help="gradc, or a backend of torch.compile")
    group.addoption("--parity-steps", type=int, default=1, metavar="N", help="how often each step is called in a run")
    group.addoption("--parity-may-round", action="store_true", help="let pass what only rounds otherwise")


def pytest_configure() -> None:
    logging.getLogger("torch.__trace").setLevel(logging.CRITICAL)  # or pytest prints thousands of its lines at each failure


@pytest.fixture
def assert_parity(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """``gradc.testing.assert_parity``, with what the command line says, where the call says nothing else."""
    option = request.config.getoption
    against, steps, may_round = option("--parity-against"), option("--parity-steps"), option("--parity-may-round")
    return functools.partial(asserted, against=against, steps=steps, may_round=may_round)
