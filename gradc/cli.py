"""The command line: ``gradc demo | check | explain | report | programs | env | bench``.

    main: list of arguments -> exit status

0: fine; 1: check found a difference; 2: a mistake of the user's, or a check that proves nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import runpy
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradc import environment
from gradc.backends import DEFAULT_BACKEND
from gradc.demo import main as demo
from gradc.errors import ConfigError, GradcError
from gradc.parity.against import GRADC, Redirection, compiler_of, redirected
from gradc.parity.check import check_script, check_with
from gradc.parity.report import Report
from gradc.reporting.explain import explain
from gradc.reporting.report import report_with
from gradc.traces.programs import programs

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
DEFAULT_BENCHMARK = "steps"


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return options.run(options)
    except GradcError as error:
        print(f"gradc: error: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="gradc", description="Compiled PyTorch training with eager's gradients.")
    top.add_argument("--version", action="version", version=environment.versions())
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands.add_parser("demo", help="train a small vision transformer eagerly and compiled"))
    _add_check(commands.add_parser("check", help="compare a function of yours, compiled, with eager, tensor by tensor"))
    _add_explain(commands.add_parser("explain", help="say what gradc makes of a function of yours, and what ran eagerly"))
    _add_report(commands.add_parser("report", help="write a page of HTML about a step of yours: graphs, memory, times, parity"))
    _add_programs(commands.add_parser("programs", help="save what is captured of a function of yours as Python files"))
    env = commands.add_parser("env", help="say what gradc runs on: versions, extension, CPU; for bug reports")
    env.set_defaults(run=run_env)
    # Another prefix than "-", so that what follows, --help too, is left to the benchmark.
    bench = commands.add_parser("bench", prefix_chars="+", add_help=False, help="time training steps (needs a checkout)")
    _add_bench(bench)
    return top


def _add_demo(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=run_demo)
    default = f"default: {demo.MOST_EPOCHS_BY_DEFAULT}, fewer on a slow machine"
    command.add_argument("--epochs", type=whole_number, help=default)
    command.add_argument(
        "--backend",
        action="append",
        metavar="NAME",
        help=f"what to run beside eager; may be repeated. One of {', '.join(demo.BACKENDS)}. Default: all",
    )
    command.add_argument("--out", default="demo-out", metavar="FOLDER", help="for the plot; default: %(default)s")


def _add_check(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=run_check)
    what = "a function without arguments that runs a step; or a training script, FILE.py, which is run as it is"
    command.add_argument("target", metavar="FILE.py:FUNCTION", help=what)
    steps = "how often to call it in each run (default 1); how many steps of its optimizers a script makes (default 5)"
    command.add_argument("--steps", type=whole_number, metavar="N", help=steps)
    command.add_argument("--words", default="", metavar="WORDS", help='a script\'s command line: --words="--epochs 1"')
    command.add_argument(
        "--against",
        default=GRADC,
        metavar="COMPILER",
        help="gradc, or a backend of torch.compile, for example inductor or aot_eager; default: %(default)s",
    )
    command.add_argument("--backend", help="the backend of gradc to check; default: gradc's own default")
    command.add_argument("--json", action="store_true", help="print the report as JSON")


def _add_step(command: argparse.ArgumentParser) -> None:
    command.add_argument("target", metavar="FILE.py:FUNCTION", help="a function without arguments that runs a step")
    command.add_argument("--backend", help="the backend of gradc to use; default: gradc's own default")


def _add_explain(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=run_explain)
    _add_step(command)
    timed = "run it up to 300 times: what takes time, and is it faster compiled, or eagerly?"
    command.add_argument("--time", action="store_true", help=timed)


def _add_report(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=run_report)
    _add_step(command)
    command.add_argument("--output", default="report.html", metavar="FILE", help="the page to write; default: %(default)s")
    steps = "how often to call it in each run; the last call is measured (default %(default)s)"
    command.add_argument("--steps", type=whole_number, default=2, metavar="N", help=steps)
    command.add_argument("--no-check", action="store_true", help="leave out the parity with eager")


def _add_programs(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=run_programs)
    _add_step(command)
    command.add_argument("--output", default="programs", metavar="FOLDER", help="for the files; default: %(default)s")
    command.add_argument("--with-inputs", action="store_true", help="save what each is called with, not random numbers")


def _add_bench(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=run_bench)
    command.add_argument("words", nargs="*", help="a benchmark's name and its arguments, or arguments of the default one")


def run_demo(options: argparse.Namespace) -> int:
    demo.run(options.epochs, tuple(options.backend or ()), options.out)
    return 0


def run_check(options: argparse.Namespace) -> int:
    with redirected(compiler_of(options.against, options.backend)) as redirection:
        report = _checked(options, redirection)
    print(json.dumps(report.to_dict(), indent=2) if options.json else report)
    return (0 if report.ok else 1) if report.is_conclusive else 2


def _checked(options: argparse.Namespace, redirection: Redirection) -> Report:
    """The file is loaded here, so that what it compiles at its top level is compiled with the compiler asked for."""
    is_script = Path(options.target).is_file()
    step = None if is_script else load_function(options.target, "check")
    try:
        if step is None:
            return check_script(redirection, Path(options.target), shlex.split(options.words), _or(options.steps, 5))
        return check_with(redirection, step, (), _or(options.steps, 1))
    except GradcError:
        raise
    except Exception as error:
        traceback.print_exc()
        what = "script" if is_script else "step"
        raise ConfigError(
            f"gradc check {options.target}: the {what} itself raises {type(error).__name__}, in eager."
        ) from error


def _or(number: int | None, default: int) -> int:
    return default if number is None else number


def run_explain(options: argparse.Namespace) -> int:
    step, backend = load_function(options.target, "explain"), options.backend or DEFAULT_BACKEND
    print(explain(step, backend=backend, is_timed=options.time)())
    return 0


def run_report(options: argparse.Namespace) -> int:
    with redirected(compiler_of(GRADC, options.backend)) as redirection:
        step = load_function(options.target, "report")
        found = report_with(redirection, options.output, step, (), options.steps, is_checked=not options.no_check)
    print(f"{options.output}: {len(found.graphs)} graphs, {len(found.ops)} ops. Open it in a browser; it needs no network.")
    return 0


def run_programs(options: argparse.Namespace) -> int:
    step, folder = load_function(options.target, "programs"), Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs(step, backend=options.backend or DEFAULT_BACKEND, with_inputs=options.with_inputs)():
        print(f"{program.save(folder / f'{program.name}.py')}: {len(program.program.instructions)} calls")
    return 0


def run_env(options: argparse.Namespace) -> int:
    print(environment.describe())
    return 0


def run_bench(options: argparse.Namespace) -> int:
    helpers = ("__init__", "common", "endurance", "models", "results", "runs")
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem not in helpers)
    if not names:
        raise ConfigError(
            f"gradc bench: the benchmarks are not part of the installed package, and there is no folder {BENCHMARKS}.\n"
            "  Run it from a checkout that was installed with: pip install --no-build-isolation -e ."
        )
    is_named = options.words and not options.words[0].startswith("-")
    name, *rest = options.words if is_named else [DEFAULT_BENCHMARK, *options.words]
    if name == "list":
        print("\n".join(f"gradc bench {name}" for name in names))
        return 0
    if name not in names:
        raise ConfigError(f"gradc bench {name}: there is no such benchmark. There are: {', '.join(names)}.")
    sys.path.insert(0, str(BENCHMARKS.parent))
    sys.argv = [f"gradc bench {name}", *rest]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    return 0


def load_function(target: str, command: str) -> Callable[..., Any]:
    """``"train.py:step"`` -> the function ``step`` of the file. ``command`` is what asked for it.

    Raises:
        ConfigError: if the text, the file or the function is not there. Errors in the file itself come through.
    """
    filename, colon, name = target.rpartition(":")
    if not colon or not filename or not name:
        raise ConfigError(f"gradc {command} {target}: expected FILE.py:FUNCTION, for example train.py:step.")
    path = Path(filename)
    if not path.is_file():
        raise ConfigError(f"gradc {command} {target}: there is no file {filename}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"gradc {command} {target}: {filename} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"gradc {command} {target}: {filename} has no function {name!r}. It has: {', '.join(functions)}.")
    return function


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"use a whole number, not {text!r}") from None


if __name__ == "__main__":
    sys.exit(main())
