"""A generated program: readable Python source, and the step that it defines.

    Program.source() -> text          Program.runs() -> (step, makers) of each run, for the oracle

The text is a test: ``inputs`` as makers, ``f`` compiled, the driver that calls it and differentiates. A Program may run several
times under one compilation, at other sizes and with other numbers.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import linecache
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz import toolbox


@dataclasses.dataclass(frozen=True)
class Block:
    """A compound statement: ``head`` (with its colon) over ``body``."""

    head: str
    body: tuple[Statement, ...]


Statement = str | Block
Run = tuple[Callable[..., Any], tuple[Callable[[], Any], ...]]
_NUMBER = re.compile(r"((?:[*/+-] |(?:value|alpha|beta)=|\.(?:add|sub|mul|div)_?\())(\d+\.?\d*)(?![\w.])")
_SIZE = re.compile(r"\((\d+)(?=[,)])")


@dataclasses.dataclass(frozen=True)
class Change:
    """What a run has otherwise: sizes of inputs that are larger, numbers in the body that are."""

    size: int = 0
    number: int = 0


AS_IT_IS = (Change(),)
VARIED = tuple(Change(*both) for both in ((0, 0), (3, 0), (1, 0), (6, 2), (0, 2), (2, 0)))


@dataclasses.dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        inputs: name -> expression of its maker.
        options: arguments of ``compile`` other than the function.
        body: of the compiled function; its parameters are the names of ``inputs``.
        outputs: key -> name of the variable that is returned under it.
        driver: what the step does; calls ``f``, and appends to ``events`` what is to be compared.
        changes: a run for each, under one compilation.
    """

    inputs: dict[str, str]
    options: str
    body: tuple[Statement, ...]
    outputs: dict[str, str]
    driver: tuple[Statement, ...]
    changes: tuple[Change, ...] = AS_IT_IS

    def source(self, name: str = "step") -> str:
        parameters = ", ".join(self.inputs)
        returned = ", ".join(f'"{key}": {variable}' for key, variable in self.outputs.items())
        lines = [f"def {name}(compile, {parameters}):", "    events = []", ""]
        lines += [f"    @compile({self.options})", f"    def f({parameters}):"]
        lines += _indented(self.body, 8)
        lines += [f"        return {{{returned}}}", ""]
        lines += _indented(self.driver, 4)
        lines += ["    return events", ""]
        return "\n".join(lines)

    def test(self, name: str) -> str:
        """The program as a test for one of tests/fuzz/test_found_*.py, which names it after what was wrong."""
        makers = ", ".join(self.inputs.values())
        step = f"{name}_step"
        return f"{self.source(step)}\n\ndef test_{name}():\n    check({step}, {makers}, allow_fallback=True)\n"

    def runs(self) -> list[Run]:
        """The step and the makers of its inputs, for each run."""
        return [_run(_changed(self, change)) for change in self.changes]


def _run(program: Program) -> Run:
    return _step(program.source()), tuple(eval(maker, _toolbox()) for maker in program.inputs.values())


@functools.lru_cache(maxsize=16)
def _step(text: str) -> Callable[..., Any]:
    """One function for one text: Dynamo takes another for another program."""
    filename = f"<fuzz {hash(text) & 0xFFFFFFFF:08x}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    space = _toolbox()
    exec(compile(text, filename, "exec"), space)
    return space["step"]


def _toolbox() -> dict[str, Any]:
    return {name: getattr(toolbox, name) for name in toolbox.__all__}


def _changed(program: Program, change: Change) -> Program:
    if change == Change():
        return program
    inputs = _grown(program.inputs, change.size)
    body = tuple(_with_numbers(statement, change.number) for statement in program.body)
    return dataclasses.replace(program, inputs=inputs, body=body)


def _grown(inputs: dict[str, str], more: int) -> dict[str, str]:
    """The makers with a larger first size, where it is the most frequent of the first sizes."""
    sizes = collections.Counter(found[1] for maker in inputs.values() if (found := _SIZE.search(maker)))
    batch = max(sizes, key=lambda size: sizes[size], default="")
    grown = f"({int(batch or 0) + more}"
    return {name: _SIZE.sub(lambda found: grown if found[1] == batch else found[0], maker, 1) for name, maker in inputs.items()}


def _with_numbers(statement: Statement, more: int) -> Statement:
    """The statement with larger numbers, where it computes with one."""
    if isinstance(statement, Block):
        return Block(statement.head, tuple(_with_numbers(inner, more) for inner in statement.body))
    return _NUMBER.sub(lambda found: f"{found[1]}{ast.literal_eval(found[2]) + more}", statement)


def on(device: str, program: Program) -> Program:
    """The program under autocast of a device of that type; that its tensors are there is for ``with torch.device(...)``."""

    def moved(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(
            Block(_of_device(device, each.head), moved(each.body)) if isinstance(each, Block) else _of_device(device, each)
            for each in statements
        )

    return dataclasses.replace(program, body=moved(program.body), driver=moved(program.driver))


def _of_device(device: str, text: str) -> str:
    return text.replace('torch.autocast("cpu"', f'torch.autocast("{device}"')


def _indented(statements: tuple[Statement, ...], width: int) -> list[str]:
    lines: list[str] = []
    for statement in statements:
        if isinstance(statement, Block):
            lines += [" " * width + statement.head, *_indented(statement.body or ("pass",), width + 4)]
        else:
            lines.append(" " * width + statement)
    return lines


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one part less: an output, a statement, a block's head, an option, an input."""
    for driver in _smaller_statements(program.driver):
        yield dataclasses.replace(program, driver=driver)
    for key in program.outputs:
        rest = {k: v for k, v in program.outputs.items() if k != key}
        yield dataclasses.replace(program, outputs=rest)
    for body in _smaller_statements(program.body):
        yield dataclasses.replace(program, body=body)
    if program.options:
        yield dataclasses.replace(program, options="")
    for name in program.inputs:
        if len(program.inputs) > 1 and not _mentions(program, name):
            yield _without_input(program, name)


def _smaller_statements(statements: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    half = len(statements) // 2
    if half > 2:
        yield statements[:half]
        yield statements[half:]
    for position in reversed(range(len(statements))):
        before, after = statements[:position], statements[position + 1 :]
        yield before + after
        statement = statements[position]
        if isinstance(statement, Block):
            yield before + statement.body + after
            for body in _smaller_statements(statement.body):
                yield before + (Block(statement.head, body),) + after


def _mentions(program: Program, name: str) -> bool:
    text = "\n".join(_indented(program.body, 0)) + " " + " ".join(program.outputs.values())
    return re.search(rf"\b{name}\b", text) is not None


def _without_input(program: Program, name: str) -> Program:
    inputs = {key: maker for key, maker in program.inputs.items() if key != name}

    def rewrite(statement: Statement) -> Statement:
        if isinstance(statement, Block):
            return Block(statement.head, tuple(rewrite(inner) for inner in statement.body))
        if "f(" not in statement:
            return statement
        head, _, tail = statement.partition("f(")
        given, _, rest = tail.partition(")")
        kept = [part for part in given.split(", ") if part.split("[")[0].split(".")[0] != name]
        return f"{head}f({', '.join(kept)}){rest}"

    return dataclasses.replace(program, inputs=inputs, driver=tuple(rewrite(s) for s in program.driver))
