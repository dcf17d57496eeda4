"""Check parity: run the same steps in eager and compiled from the same state, and compare them value by value.

    check: (step, arguments, steps, against) -> Report

What is compared after each step, bit for bit: the results; the gradients of every parameter and tensor argument, Nones,
dtypes and strides included; which hooks ran, and what they got; what the step left in parameters, buffers, arguments,
optimizers, and in the models and tensors that it names; and the state of the generators of random numbers. Eager runs twice:
what is not eager's own the second time is nothing to compare with. On a difference, the step is run again, recorded, to find
where it begins (``locate.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradc.errors import ConfigError
from gradc.frontend.control import reset
from gradc.journal import Fallback, Graph, Uncompiled, counters, listening
from gradc.parity.against import GRADC, Compile, Compiler, Redirection, compiler_of, redirected
from gradc.parity.differences import MISSING, Difference, Kind, Stage, Value, difference, scale_of
from gradc.parity.locate import locate
from gradc.parity.location import Location, Sign
from gradc.parity.report import Report
from gradc.parity.runs import Runs, Seen
from gradc.parity.script import ScriptRuns
from gradc.torch_private.dynamo import num_graphs

_ERROR = "exception"


def check(
    step: Callable[..., Any],
    *args: Any,
    steps: int = 1,
    against: str | Compile = GRADC,
    backend: str | None = None,
) -> Report:
    """Run ``step(*args)`` some times in eager, twice, and compiled, each from the same state, and compare bit for bit.

    If a result that requires grad is left over (``step`` did not call backward), its sum is differentiated. Forgets what was
    compiled before (``gradc.reset``), so that it is seen whether anything is. A step that calls torch.compile itself is not
    compiled as a whole: the calls compile with ``against``.

    Arguments:
        step: a function or a module. Models, optimizers, schedulers, generators and tensors that a function names as globals
            or closes over are put back after each run, and so are the generators of random numbers of torch, NumPy and Python.
        args: what it is called with. Tensors among them, of any dtype and shape, and modules are copied, with their hooks.
        steps: how often the step is called in each run.
        against: the compiler: "gradc", a backend of torch.compile ("inductor", "aot_eager"), or a function that takes a
            function or module and returns a compiled one.
        backend: of ``gradc.compile``; None: its default.

    Returns:
        A Report: ``.ok``, ``.kind``, ``.location``, ``.is_conclusive``, ``str()``, ``.to_dict()``, ``.raise_if_different()``.

    Raises:
        ConfigError: if an argument cannot be copied, or there is no such compiler.
        Exception: what the step raises in eager.
    """
    compiler = compiler_of(against, backend)
    with redirected(compiler) as redirection:
        return check_with(redirection, step, args, steps)


def check_with(redirection: Redirection, step: Callable[..., Any], args: tuple[Any, ...], num_steps: int) -> Report:
    """``check``, where torch.compile is redirected already."""
    _validate(num_steps)
    return _checked(redirection, Runs(redirection, step, args, num_steps))


def check_script(redirection: Redirection, path: Path, words: Sequence[str], num_steps: int) -> Report:
    """A whole script, run until optimizers have made ``num_steps`` steps, or to its end. ``words``: its command line.

    Its steps are those of its optimizers: compared is what they leave in models, gradients, themselves and generators. It
    is run once more for each comparison: what it writes to disk, it writes again.

    Raises:
        ConfigError: if it makes no step of an optimizer.
        Exception: what the script raises in eager.
    """
    _validate(num_steps)
    return _checked(redirection, ScriptRuns(redirection, path, words, num_steps))


def _validate(num_steps: int) -> None:
    if num_steps < 1:
        raise ConfigError(f"gradc.check: steps={num_steps} is none. Use 1 or more.")


def _checked(redirection: Redirection, runs: Runs | ScriptRuns) -> Report:
    expected, again = _twice(runs)
    if not expected:
        raise ConfigError(f"gradc check {runs}: it makes no step of an optimizer, so there is nothing to compare.")
    reset()
    num_before = num_graphs()
    with listening() as events:
        try:
            actual = runs.compiled()
        except Exception as error:
            actual = [{_ERROR: Value(f"{type(error).__name__}: {error}".splitlines()[0], Stage.OUTPUT)}]
            expected = again = [{_ERROR: Value(None, Stage.OUTPUT)}]
    num_compiled = _num_compiled(redirection.compiler, num_before, [event.what for event in events])
    num_steps = max(map(len, (expected, again, actual)))
    expected, again, actual = (_padded(seen, num_steps) for seen in (expected, again, actual))
    irreproducible = tuple(differences(expected, again))
    known = {found.name for found in irreproducible}
    differing = tuple(found for found in differences(expected, actual) if found.name not in known)
    location, finding = _in_what_was_traced(redirection, runs, expected, differing)
    location = location or _location(runs, expected, actual, differing)
    return Report(
        num_compared=sum(len({*seen, *other}) for seen, other in zip(expected, actual, strict=True)),
        differences=differing,
        irreproducible=irreproducible,
        num_compiled=num_compiled,
        left_out=tuple(event.what for event in events if isinstance(event.what, Fallback | Uncompiled)),
        against=redirection.compiler.name,
        num_steps=num_steps,
        location=location,
        num_runs=runs.stages.number,
        num_nan=sum(_has_nan(value.value) for seen in expected for value in seen.values()),
        notes=tuple(filter(None, (finding, redirection.compiler.note))),
    )


def _has_nan(value: Any) -> bool:
    is_number = isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()) and not value.is_meta
    return is_number and value.layout is torch.strided and not value.is_nested and bool(value.isnan().any())


def _twice(runs: Runs | ScriptRuns) -> tuple[Seen, Seen]:
    """What eager gives, two times. Once more where these differ: the first run also imports, which may draw random numbers."""
    first, second = runs.eagerly(), runs.eagerly()
    num_steps = max(len(first), len(second))
    if any(differences(_padded(first, num_steps), _padded(second, num_steps))):
        return second, runs.eagerly()
    return first, second


def _padded(seen: Seen, num_steps: int) -> Seen:
    return [*seen, *[{}] * (num_steps - len(seen))]


def _in_what_was_traced(
    redirection: Redirection, runs: Runs | ScriptRuns, expected: Seen, found: Sequence[Difference]
) -> tuple[Location | None, str]:
    """Where what is wrong begins, if it is so without fusing, too; and which of the two it is, in words.

    Operation by operation each call is seen, where a fused kernel hides what it is made of, and rounds otherwise.
    """
    unfused, names = redirection.compiler.unfused, {each.name for each in found if each.kind is Kind.WRONG}
    if unfused is None or not names or _ERROR in names:
        return None, ""
    reset()
    with redirection.with_compiler(unfused):
        try:
            actual = _padded(runs.compiled(), len(expected))
        except Exception as error:  # it is of this compiler alone, which was not asked for
            return None, f"Whether that comes of fusing is not known: with {unfused.name} it raises {type(error).__name__}."
        same = tuple(each for each in differences(expected, actual) if each.name in names)
        if not same:
            return None, f"Without fusing ({unfused.name}) all of that equals eager: it comes of the generated kernels."
        if max(each.kind for each in same) is not Kind.WRONG:
            return None, ""
        finding = f"Wrong without fusing, too ({unfused.name}): it lies in what was traced."
        return _location(runs, expected, actual, same), finding


def _location(runs: Runs | ScriptRuns, expected: Seen, actual: Seen, found: tuple[Difference, ...]) -> Location | None:
    if not found or _ERROR in actual[0]:
        return None
    try:
        return locate(runs, expected, actual, found)
    except Exception as error:  # a step may not bear the recorder; what was found counts all the same
        text = str(error).partition("\n")[0]
        return Location(
            Sign.MAKES, "", "", "", "", "", f"not found, since the recorded step raises {type(error).__name__}: {text}"
        )


def differences(eager: Seen, other: Seen) -> Iterator[Difference]:
    """In order, step by step; what is computed of values that round otherwise counts as that, however far it is off."""
    is_grown = False
    for number, (seen, theirs) in enumerate(zip(eager, other, strict=True), start=1):
        found = [*_of_stages(seen, theirs, number, is_grown, {Stage.OUTPUT, Stage.GRADIENT})]
        is_grown = is_grown or _only_rounds(found)
        found += _of_stages(seen, theirs, number, is_grown, {Stage.STATE})
        is_grown = is_grown or _only_rounds(found)
        yield from found


def _only_rounds(found: Sequence[Difference]) -> bool:
    return max((each.kind for each in found), default=None) is Kind.ROUNDED


def _of_stages(
    eager: dict[str, Value], other: dict[str, Value], step: int, is_grown: bool, stages: set[Stage]
) -> Iterator[Difference]:
    for stage in sorted(stages):
        names = [name for name in dict.fromkeys([*eager, *other]) if _stage(name, eager, other) is stage]
        scale = scale_of(eager[name] for name in names if name in eager)
        for name in names:
            mine, theirs = eager.get(name, MISSING), other.get(name, MISSING)
            if found := difference(name, mine, theirs, step, is_grown, scale):
                yield found


def _stage(name: str, eager: dict[str, Value], other: dict[str, Value]) -> Stage:
    return (eager if name in eager else other)[name].stage


def _num_compiled(compiler: Compiler, num_before: int, told: list[Any]) -> int | None:
    if not compiler.is_counted:
        return None
    if not compiler.is_gradc:
        return num_graphs() - num_before
    return sum(isinstance(what, Graph) for what in told) + counters["compiled_autograd"]["captures"]
