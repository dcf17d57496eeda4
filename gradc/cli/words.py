"""The words of the command line, and what each command takes. Imports nothing heavy: ``gradc --help`` answers at once.

    parser: () -> argparse.ArgumentParser; the options it parses have ``module``, where the command is, and ``command``
"""

from __future__ import annotations

import argparse
import difflib
import re
from typing import Any, NoReturn

from gradc.demo.limits import BACKENDS as DEMO_BACKENDS
from gradc.demo.limits import MOST_EPOCHS_BY_DEFAULT

UNKNOWN = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """One whose errors take a line, and name what was probably meant."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {self._shorter(message)} See {self.prog} --help.\n")

    def _shorter(self, message: str) -> str:
        if "arguments are required: COMMAND" in message:
            return f"which command? {_listed(COMMANDS)}."
        if found := re.search(r"argument COMMAND: invalid choice: '(.*?)'", message):
            return f"there is no command {found[1]!r}.{_meant(found[1], COMMANDS)}"
        if message.startswith(UNKNOWN):
            given = message.removeprefix(UNKNOWN)
            known = [word for action in self._actions for word in action.option_strings]
            return f"it does not take {given}.{_meant(given.split()[0].split('=')[0], known)}"
        return f"{message}."


def _listed(words: Any) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}"


def _meant(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f" Did you mean {close[0]}?" if close else ""


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from gradc import environment  # imports torch

        print(environment.versions())
        parser.exit(0)


COMMANDS = {
    "check": "compare a function or script of yours, compiled, with eager, tensor by tensor; torch.compile, too",
    "run": "run a training script with its models and steps compiled, and say what that brought",
    "explain": "say what gradc makes of a function or script of yours, and what ran eagerly",
    "report": "write a page of HTML about a step of yours: graphs, memory, times, parity",
    "programs": "save what is captured of a function of yours as Python files",
    "demo": "train a small vision transformer eagerly and compiled",
    "env": "say what gradc runs on: versions, extension, CPU, GPU; for bug reports",
    "bench": "time training steps (needs a checkout)",
}


def parser() -> Parser:
    top = Parser(prog="gradc", description="Compiled PyTorch training with the gradients of eager, bit for bit.")
    top.add_argument("--version", action=_Version, nargs=0, help="say the versions of gradc and torch")
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, text in COMMANDS.items():
        # Another prefix than "-", so that what follows, --help too, is left to the benchmark.
        other: dict[str, Any] = {"prefix_chars": "+", "add_help": False} if name == "bench" else {}
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", **other)
        command.set_defaults(parser=command)
        _ADD[name](command)
    return top


def _check(command: Parser) -> None:
    command.set_defaults(module="gradc.cli.checks")
    _target(command, "is run until its optimizers have made some steps")
    steps = "how often to call it in each run (default 1); how many steps of its optimizers a script makes (default 5)"
    command.add_argument("--steps", type=whole_number, metavar="N", help=steps)
    _words(command)
    command.add_argument(
        "--against",
        default="gradc",
        metavar="COMPILER",
        help="gradc, or a backend of torch.compile, for example inductor or aot_eager; default: %(default)s",
    )
    command.add_argument("--backend", help="the backend of gradc to check; default: gradc's own default")
    command.add_argument("--table", action="store_true", help="list each value that differs, and how far it is off")
    command.add_argument("--json", action="store_true", help="print the report as JSON")


def _run(command: Parser) -> None:
    command.set_defaults(module="gradc.cli.runs")
    command.add_argument("--backend", help="the backend of gradc to use; default: gradc's own default")
    command.add_argument("target", metavar="FILE.py", help="the script; what follows is its own command line")
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="the script's own command line")


def _explain(command: Parser) -> None:
    command.set_defaults(module="gradc.cli.looks")
    _target(command, "is run until its optimizers have made some steps")
    _words(command)
    _backend(command)
    timed = "run it up to 300 times: what takes time, and is it faster compiled, or eagerly?"
    command.add_argument("--time", action="store_true", help=timed)


def _report(command: Parser) -> None:
    command.set_defaults(module="gradc.cli.looks")
    command.epilog = "gradc report --diff a.html b.html compares two pages, and runs nothing."
    _target(command, "is run until its model is called, whose forward and backward are then looked at", nargs="?")
    _words(command)
    _backend(command)
    command.add_argument("--output", default="report.html", metavar="FILE", help="the page to write; default: %(default)s")
    steps = "how often to call it in each run; the last call is measured (default %(default)s)"
    command.add_argument("--steps", type=whole_number, default=2, metavar="N", help=steps)
    command.add_argument("--no-check", action="store_true", help="leave out the parity with eager")
    command.add_argument("--diff", nargs=2, metavar=("A", "B"), help="compare two pages that were written before")


def _programs(command: Parser) -> None:
    command.set_defaults(module="gradc.cli.looks")
    command.add_argument("target", metavar="FILE.py:FUNCTION", help="a function without arguments that runs a step")
    _backend(command)
    command.add_argument("--output", default="programs", metavar="FOLDER", help="for the files; default: %(default)s")
    command.add_argument("--with-inputs", action="store_true", help="save what each is called with, not random numbers")


def _demo(command: Parser) -> None:
    command.set_defaults(module="gradc.cli.rest")
    default = f"default: {MOST_EPOCHS_BY_DEFAULT}, fewer on a slow machine"
    command.add_argument("--epochs", type=whole_number, help=default)
    command.add_argument(
        "--backend",
        action="append",
        metavar="NAME",
        help=f"what to run beside eager; may be repeated. One of {', '.join(DEMO_BACKENDS)}. Default: all",
    )
    command.add_argument("--out", default="demo-out", metavar="FOLDER", help="for the plot; default: %(default)s")


def _env(command: Parser) -> None:
    command.set_defaults(module="gradc.cli.rest")


def _bench(command: Parser) -> None:
    command.set_defaults(module="gradc.cli.rest")
    command.add_argument("words", nargs="*", help="a benchmark's name and its arguments, or arguments of the default one")


_ADD = {
    "check": _check,
    "run": _run,
    "explain": _explain,
    "report": _report,
    "programs": _programs,
    "demo": _demo,
    "env": _env,
    "bench": _bench,
}


def _target(command: Parser, of_script: str, **how: Any) -> None:
    what = f"a function without arguments that runs a step; or a training script, FILE.py, which {of_script}"
    command.add_argument("target", metavar="FILE.py:FUNCTION", help=what, **how)


def _words(command: Parser) -> None:
    command.add_argument("--words", default="", metavar="WORDS", help='a script\'s command line: --words="--epochs 1"')


def _backend(command: Parser) -> None:
    command.add_argument("--backend", help="the backend of gradc to use; default: gradc's own default")


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"use a whole number, not {text!r}") from None
