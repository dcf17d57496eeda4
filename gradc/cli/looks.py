"""``gradc explain``, ``gradc report`` and ``gradc programs``: what gradc makes of a step."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from gradc.backends import DEFAULT_BACKEND
from gradc.cli.entry import TheirsError
from gradc.cli.target import Target
from gradc.errors import ConfigError, GradcError, InternalError
from gradc.parity.against import GRADC, compiler_of, redirected
from gradc.reporting import explain as explaining
from gradc.reporting.report import report_with
from gradc.scripts import run as scripts
from gradc.torch_private.dynamo import compilations
from gradc.traces import programs as captured

_STEPS = 4  # of a script, that run compiled


@contextmanager
def _running(target: Target) -> Iterator[None]:
    """What the user's code raises comes out as theirs."""
    try:
        yield
    except (GradcError, InternalError):
        raise
    except Exception as error:
        raise TheirsError(target) from error


def explain(options: argparse.Namespace) -> int:
    if options.target.is_script:
        return _explain_script(options)
    with _running(options.target):
        step, backend = options.target.load(), options.backend or DEFAULT_BACKEND
        print(explaining.explain(step, backend=backend, is_timed=options.time)())
    return 0


def _explain_script(options: argparse.Namespace) -> int:
    if options.time:
        raise ConfigError(f"gradc explain {options.target} --time: a script is timed by gradc run {options.target}.")
    known = compilations()
    with _running(options.target):
        heard = scripts.heard(options.target.path, shlex.split(options.words), options.backend, _STEPS)
    print(explaining.explanation_of(heard.events, heard.num_first, known))
    return 0


def report(options: argparse.Namespace) -> int:
    with redirected(compiler_of(GRADC, options.backend)) as redirection, _running(options.target):
        around, step, args = _step_of(options)
        with around:
            found = report_with(redirection, options.output, step, args, options.steps, is_checked=not options.no_check)
    print(f"{options.output}: {len(found.graphs)} graphs, {len(found.ops)} ops. Open it in a browser; it needs no network.")
    return 0


def _step_of(options: argparse.Namespace) -> tuple[AbstractContextManager[Any], Callable[..., Any], tuple[Any, ...]]:
    """What to run it in, itself, and its arguments."""
    if options.target.is_script:
        call = scripts.call_of(options.target.path, shlex.split(options.words))
        return call.surroundings(), call.model, call.args
    return nullcontext(), options.target.load(), ()


def programs(options: argparse.Namespace) -> int:
    with _running(options.target):
        step, folder = options.target.load(), Path(options.output)
        folder.mkdir(parents=True, exist_ok=True)
        for program in captured.programs(step, backend=options.backend or DEFAULT_BACKEND, with_inputs=options.with_inputs)():
            print(f"{program.save(folder / f'{program.name}.py')}: {len(program.program.instructions)} calls")
    return 0
