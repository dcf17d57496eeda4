"""The command line: ``gradc demo | check | run | explain | report | programs | env | bench``.

    main: list of arguments -> exit status

0: fine; 1: check found a difference; 2: a mistake of the user's, or a check that proves nothing; 130: Ctrl-C.

A command's own module, and torch with it, is imported once its arguments are known to be right.
"""

from gradc.cli.entry import main
from gradc.cli.words import parser

__all__ = ["main", "parser"]
