"""For test suites: fail where a training step, compiled, is not eager's.

    assert_parity: (step, arguments, steps, against) -> Report, or CheckError

In a suite of pytest's, ``pytest_plugins = ["gradc.pytest_plugin"]`` gives the same as a fixture, with options for the command
line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradc.errors import CheckError
from gradc.parity.against import GRADC, Compile
from gradc.parity.check import check
from gradc.parity.differences import Kind
from gradc.parity.report import Report

__all__ = ["assert_parity"]


def assert_parity(
    step: Callable[..., Any],
    *args: Any,
    steps: int = 1,
    against: str | Compile = GRADC,
    backend: str | None = None,
    may_round: bool = False,
) -> Report:
    """Run ``step(*args)`` as ``gradc.check`` does, and raise if the compiled one is not eager's.

    Arguments:
        step, args, steps, against, backend: as of ``gradc.check``.
        may_round: let pass what rounds otherwise, or has other strides. For compilers that fuse, like "inductor"; what is
            wrong (a dtype, a None, a mask, a magnitude) raises all the same.

    Returns:
        The Report.

    Raises:
        CheckError: an AssertionError, with the whole report: if a value is not eager's; or if the check proves nothing, for
            nothing was compiled, or eager is not reproducible.
        ConfigError: if an argument cannot be copied, or there is no such compiler.
        Exception: what the step raises in eager.
    """
    report = check(step, *args, steps=steps, against=against, backend=backend)
    if not report.is_conclusive:
        raise CheckError(f"This proves nothing:\n{report}")
    if not (may_round and report.kind is not Kind.WRONG):
        report.raise_if_different()
    return report
