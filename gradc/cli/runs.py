"""``gradc run``."""

from __future__ import annotations

import argparse
import sys
import traceback

from gradc.scripts import run as scripts


def run(options: argparse.Namespace) -> int:
    """The script's own exit status; what it raises is shown as Python shows it."""
    path = options.target.path
    try:
        outcome = scripts.run(path, options.words, options.backend)
    except KeyboardInterrupt:
        raise
    except Exception as error:
        theirs = error.__traceback__
        while theirs is not None and theirs.tb_frame.f_code.co_filename != str(path):
            theirs = theirs.tb_next
        traceback.print_exception(error.with_traceback(theirs or error.__traceback__))
        return 1
    if scripts.is_told():
        print(outcome, file=sys.stderr)
    return _status(outcome.exit_code)


def _status(code: str | int | None) -> int:
    """As Python makes it of what ``sys.exit`` is given."""
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1
