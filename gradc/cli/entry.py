"""Parse the arguments, import the command's module, run it, and turn what goes wrong into a line.

main: list of arguments -> exit status
"""

from __future__ import annotations

import argparse
import importlib
import os
import site
import sys
import sysconfig
import traceback

from gradc.cli.before import look_at
from gradc.cli.target import Target
from gradc.cli.words import UNKNOWN, parser
from gradc.errors import GradcError, InternalError

MISTAKE, STOPPED = 2, 130


class TheirsError(Exception):
    """What the user's own code raised; its cause is the error itself.

    Attributes:
        target: whose code.
        when: "in eager", or "".
    """

    def __init__(self, target: Target, when: str = "") -> None:
        super().__init__(str(target))
        self.target, self.when = target, when


def main(arguments: list[str] | None = None) -> int:
    options, unknown = parser().parse_known_args(arguments)
    if unknown:
        options.parser.error(f"{UNKNOWN}{' '.join(unknown)}")
    try:
        look_at(options)
        status: int = getattr(importlib.import_module(module_of(options)), options.command)(options)
        return status
    except GradcError as error:
        return _say(str(error))
    except TheirsError as error:
        return _say(_in_a_line(error, options.command))
    except KeyboardInterrupt as error:
        where = f" in {error}" if str(error) else ""
        print(f"\ngradc {options.command}: stopped by Ctrl-C{where}.", file=sys.stderr)
        return STOPPED


def module_of(options: argparse.Namespace) -> str:
    """Where the command is: to compare two pages takes no torch."""
    module: str = options.module
    return "gradc.cli.diffs" if getattr(options, "diff", None) else module


def _say(text: str) -> int:
    print(f"gradc: error: {text}", file=sys.stderr)
    return MISTAKE


def _in_a_line(error: TheirsError, command: str) -> str:
    """What, where, what to do."""
    cause = error.__cause__
    assert cause is not None
    if isinstance(cause, InternalError):
        raise cause
    what = f"{type(cause).__name__}: {cause}".splitlines()[0].removesuffix(".")
    when = f" {error.when}" if error.when else ""
    where = f"\n  at {place}." if (place := place_of(cause)) else "\n "
    return f"gradc {command}: {error.target} raises {what}{when}{where} The traceback: {error.target.by_hand}"


def place_of(error: BaseException) -> str:
    """ "train.py:17 in step", the innermost line that is in no library; "" if there is none."""
    libraries = [sysconfig.get_path("stdlib"), os.path.dirname(os.path.dirname(__file__)), *site.getsitepackages(), "<"]
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(tuple(libraries)) and "site-packages" not in frame.filename
    ]
    return f"{os.path.relpath(theirs[-1].filename)}:{theirs[-1].lineno} in {theirs[-1].name}" if theirs else ""
