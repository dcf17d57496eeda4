"""``gradc check``."""

from __future__ import annotations

import argparse
import json
import shlex

from gradc.cli.entry import MISTAKE, TheirsError
from gradc.errors import GradcError
from gradc.parity.against import Redirection, compiler_of, redirected
from gradc.parity.check import check_script, check_with
from gradc.parity.report import Report


def check(options: argparse.Namespace) -> int:
    with redirected(compiler_of(options.against, options.backend)) as redirection:
        report = _checked(options, redirection)
    print(json.dumps(report.to_dict(), indent=2) if options.json else report.in_full() if options.table else report)
    return (0 if report.ok else 1) if report.is_conclusive else MISTAKE


def _checked(options: argparse.Namespace, redirection: Redirection) -> Report:
    """The file is loaded here, so that what it compiles at its top level is compiled with the compiler asked for."""
    target = options.target
    try:
        if target.is_script:
            return check_script(redirection, target.path, shlex.split(options.words), options.steps or 5)
        return check_with(redirection, target.load(), (), options.steps or 1)
    except GradcError:
        raise
    except Exception as error:
        raise TheirsError(target, "in eager") from error
