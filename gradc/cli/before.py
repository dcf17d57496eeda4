"""Look at what a command was asked for before torch is imported, which takes seconds.

    look_at: options -> None         ``options.target`` becomes a Target
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gradc.cli.target import target_of
from gradc.demo.limits import check_limits
from gradc.errors import ConfigError

_TAKE_SCRIPTS = ("check", "run", "explain", "report")


def look_at(options: argparse.Namespace) -> None:
    """
    Raises:
        ConfigError: for what cannot be right.
    """
    command = options.command
    if command == "demo":
        check_limits(options.epochs, tuple(options.backend or ()))
    if command == "report":
        _look_at_pages(options)
    if getattr(options, "target", None) is not None:
        options.target = target_of(options.target, command, takes_script=command in _TAKE_SCRIPTS, backend=options.backend)
        _look_at_script(options)
    if getattr(options, "steps", None) is not None and options.steps < 1:
        raise ConfigError(f"gradc {command} --steps {options.steps}: that is none. Use 1 or more.")
    if command == "check" and options.backend is not None and options.against != "gradc":
        raise ConfigError(
            f"gradc check --against {options.against} --backend {options.backend}: --backend is for gradc. Leave one out."
        )


def _look_at_script(options: argparse.Namespace) -> None:
    target, words = options.target, getattr(options, "words", None)
    if options.command == "run" and not target.is_script:
        raise ConfigError(f"gradc run {target}: it runs scripts. For a function: gradc explain {target}.")
    if words and not target.is_script:
        raise ConfigError(f"gradc {options.command} {target} --words: a function has no command line. Leave it out.")


def _look_at_pages(options: argparse.Namespace) -> None:
    if options.diff is None and options.target is None:
        raise ConfigError("gradc report: of what? Name FILE.py:FUNCTION or FILE.py; or two pages, with --diff A B.")
    for name in options.diff or ():
        if not Path(name).is_file():
            raise ConfigError(f"gradc report --diff: there is no file {name}. Give two pages that gradc report wrote.")
    if options.diff is None and not Path(options.output).parent.is_dir():
        raise ConfigError(f"gradc report --output {options.output}: there is no folder {Path(options.output).parent}.")
