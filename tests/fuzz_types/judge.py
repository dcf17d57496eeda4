"""Does a program do under gradc what it does in eager? Its result, its error, and what it left of its value, twice.

judge: (Program, Compiler) -> Verdict

Not compared: whether two equal constants are one object; of which type an iterator is, but of a list; and the error of a call
with too many or too few arguments, or with a value that no program would give there: Dynamo looks at some of them less closely.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.compilers import EAGER, GRADC, Compiler
from tests.fuzz_types.generate import NAMES, Program

BAD = ("wrong",)
_OF_ARGUMENTS = re.compile(
    r"expected .*arguments?|takes .*arguments?|missing .*argument|keyword argument|attribute name must be"
)
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """``status``: ok, wrong, or undefined: the program is none that anybody writes."""

    status: str
    detail: str = ""


def judge(program: Program, compiler: Compiler = GRADC) -> Verdict:
    """See the module's docstring."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            eager = _outcomes(program, EAGER)
        except SyntaxError:
            return Verdict("undefined")
        if _OF_ARGUMENTS.search(str(eager)) or _is_known(program):
            return Verdict("undefined")
        compiler.reset()
        got = _outcomes(program, compiler)
    detail = next((f"eager {a}, compiled {b}" for a, b in zip(eager, got, strict=True) if a != b), "")
    return Verdict("wrong" if detail else "ok", detail)


def _is_known(program: Program) -> bool:
    """Counters and dictionaries meet in ``|``, a named tuple is taken once: Dynamo gives the type of the other."""
    is_union = " | " in program.act and any("Counter" in text for text in (program.value, program.act))
    return is_union or ("Pair" in program.value and "*" in program.act)


def _outcomes(program: Program, compiler: Compiler) -> list[str]:
    names: dict[str, Any] = {**NAMES, "copy": copy}
    exec(compile(program.source(), f"<{program.act}>", "exec"), names)
    function = compiler(names["f"])
    return [_outcome(program, function, names) for _ in range(2)]


def _outcome(program: Program, function: Callable[..., Any], names: dict[str, Any]) -> str:
    given, names["outside"] = (eval(program.value, dict(NAMES)) for _ in range(2))
    try:
        _, *seen = function(torch.ones(2), given)
    except Exception as error:
        seen = [("raised", error)]
    return _ADDRESS.sub("0x", repr([*map(_told, seen), _told(given), _told(names["outside"])]))


def _told(value: Any) -> Any:
    kind = type(value).__name__
    if isinstance(value, list | tuple | deque):
        return kind, [*map(_told, value)], getattr(value, "maxlen", None)
    if isinstance(value, set | frozenset):
        return kind, sorted(map(repr, value))
    if isinstance(value, dict):
        return kind, [(_told(key), _told(each)) for key, each in value.items()]
    if isinstance(value, BaseException):
        return kind, str(value), [*map(str, value.args)]
    if isinstance(value, Iterator):
        is_of_list = type(value) in (type(iter([])), type(reversed([])))
        return kind if is_of_list else "iterator", _told(_listed(value))
    return kind, "" if callable(value) else repr(value)


def _listed(iterator: Iterator[Any]) -> Any:
    try:
        return list(itertools.islice(iterator, 20))
    except Exception as error:
        return error
