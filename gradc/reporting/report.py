"""Write what was found of a training step as a page to look at.

report: (path, step, arguments, number of steps) -> StepReport, and the page in the file
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradc.errors import ConfigError
from gradc.parity.against import GRADC, Redirection, compiler_of, redirected
from gradc.reporting.collect import collect
from gradc.reporting.model import StepReport
from gradc.reporting.page import page_of, require_plotly


def report(
    path: str | os.PathLike[str],
    step: Callable[..., Any],
    *args: Any,
    steps: int = 2,
    backend: str | None = None,
    is_checked: bool = True,
) -> StepReport:
    """Run ``step(*args)`` in eager and compiled, and write one self-contained page of HTML about it to ``path``.

        gradc.report("report.html", model, x)

    On the page: forward and backward, op by op, by module and segment, with dtypes, shapes, bytes, times and lines; memory and
    what is alive at the peak; times against eager; graph breaks, fallbacks, what was captured again and why; parity with
    eager. The step is run on copies and from the same state each time, as ``gradc.check`` runs it; some dozen times in all.
    Forgets what was compiled before (``gradc.reset``).

    Arguments:
        path: of the file to write; what is there is written over.
        step: a function or a module. If a result that requires grad is left over, its sum is differentiated.
        args: of the step; copied.
        steps: how often it is called in a row in each run; the last call is measured. What changes from call to call, as
            sizes may, shows under "captured again".
        backend: of ``gradc.compile``; None: its default.
        is_checked: also check parity, with ``gradc.check``.

    Returns:
        A StepReport: all that the page says, as values; ``.to_dict()``.

    Raises:
        GradcError: if plotly is not installed; before anything is run.
        ConfigError: if an argument cannot be copied, or the file cannot be written.
        Exception: what the step raises in eager.
    """
    with redirected(compiler_of(GRADC, backend)) as redirection:
        return report_with(redirection, path, step, args, steps, is_checked=is_checked)


def report_with(
    redirection: Redirection,
    path: str | os.PathLike[str],
    step: Callable[..., Any],
    args: tuple[Any, ...],
    num_steps: int,
    *,
    is_checked: bool = True,
) -> StepReport:
    """``report``, where torch.compile is redirected already."""
    require_plotly()
    file = Path(path)
    if not file.parent.is_dir():
        raise ConfigError(f"gradc.report: there is no folder {file.parent} for {file.name}.")
    found = dataclasses.replace(collect(redirection, step, args, num_steps, is_checked=is_checked), path=str(file))
    file.write_text(page_of(found), encoding="utf-8")
    return found
