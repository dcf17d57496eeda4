"""What a command is to run, looked at before torch is imported and anything runs.

    target_of: (text, command, ...) -> Target          "train.py:step", or "train.py" where a command takes scripts
    Target.load: () -> the function                    runs the file

A file is read, not run: most mistakes show in its text.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gradc.errors import ConfigError
from gradc.options import BACKENDS


@dataclasses.dataclass(frozen=True)
class Target:
    """
    Attributes:
        command: that asked for it.
        path: of the file.
        name: of the function; "" for a script, which is run as it is.
    """

    command: str
    path: Path
    name: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.name}" if self.name else str(self.path)

    @property
    def is_script(self) -> bool:
        return not self.name

    @property
    def by_hand(self) -> str:
        """What runs it without gradc, to be typed into a shell."""
        return f"python {self.path}" if self.is_script else f"python -c 'import {self.path.stem} as m; m.{self.name}()'"

    def load(self) -> Callable[[], Any]:
        """The function of the file.

        Raises:
            ConfigError: if it is none, or takes arguments. Errors in the file itself come through.
        """
        spec = importlib.util.spec_from_file_location(self.path.stem, self.path)
        assert spec is not None and spec.loader is not None  # its name ends with .py
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(self.path.parent.resolve()))
        spec.loader.exec_module(module)
        function = getattr(module, self.name, None)
        if not callable(function):
            raise _no_function(self, [name for name, value in vars(module).items() if inspect.isroutine(value)])
        if needs := _needed(function):
            raise _takes(self, needs)
        return function


def target_of(text: str, command: str, *, takes_script: bool, backend: str | None = None) -> Target:
    """
    Raises:
        ConfigError: if there is no such file or function, it takes arguments, or nobody knows the backend.
    """
    filename, colon, name = text.rpartition(":") if ":" in text else (text, "", "")
    form = "FILE.py:FUNCTION, for example train.py:step" + (", or a script, FILE.py" if takes_script else "")
    if not filename or (colon and not name) or (not colon and not takes_script):
        raise ConfigError(f"gradc {command} {text}: expected {form}.")
    target = Target(command, Path(filename), name)
    if not target.path.is_file():
        raise ConfigError(f"gradc {command} {text}: there is no file {filename}{_near(target.path)}.")
    if target.path.suffix != ".py":
        raise ConfigError(f"gradc {command} {text}: {filename} is not a Python file. Expected {form}.")
    _look(target, backend)
    return target


def _near(path: Path) -> str:
    names = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, 1)
    return f"; there is {path.with_name(close[0])}" if close else f" in {path.parent.resolve()}"


def _look(target: Target, backend: str | None) -> None:
    text = target.path.read_text(encoding="utf-8", errors="replace")
    try:
        tree = ast.parse(text, str(target.path))
    except SyntaxError as error:
        raise ConfigError(
            f"gradc {target.command} {target}: line {error.lineno} of {target.path} is not Python: {error.msg}."
        ) from None
    if backend is not None and backend not in BACKENDS and backend not in text:
        raise ConfigError(
            f"gradc {target.command}: gradc has no backend {backend!r}. Use {', '.join(BACKENDS[:-1])} or {BACKENDS[-1]};"
            f" one of your own is registered in {target.path}."
        )
    if target.is_script:
        return
    names = set(_bound(tree))
    if target.name not in names and "*" not in names:
        raise _no_function(target, [each.name for each in tree.body if isinstance(each, ast.FunctionDef)])
    for each in tree.body:
        if isinstance(each, ast.FunctionDef) and each.name == target.name and (needs := _needed_of(each)):
            raise _takes(target, needs)


def _bound(tree: ast.Module) -> Iterator[str]:
    """Every name that the file may bind at its top, wherever the statement stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name


def _needed_of(function: ast.FunctionDef) -> list[str]:
    """Of a decorated function nobody knows, before it is there."""
    if function.decorator_list:
        return []
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args]
    alone = [each for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults) if default is None]
    return [each.arg for each in (*given[: len(given) - len(arguments.defaults)], *alone)]


def _needed(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    has_to = (each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD))
    return [each.name for each in has_to if each.default is each.empty]


def _no_function(target: Target, functions: list[str]) -> ConfigError:
    functions = [name for name in functions if not name.startswith("_")]
    has = f"It has: {', '.join(functions)}" if functions else "It has none"
    return ConfigError(f"gradc {target.command} {target}: {target.path} has no function {target.name!r}. {has}.")


def _takes(target: Target, needs: list[str]) -> ConfigError:
    call, in_python = f"{target.name}({', '.join(needs)})", f"gradc.{_IN_PYTHON[target.command]}"
    return ConfigError(
        f"gradc {target.command} {target}: {call} takes arguments, and nobody gives it any."
        f"\n  Name a function without: def run(): return {target.name}(...), or use {in_python} in Python."
    )


_IN_PYTHON = {
    "check": "check(step, *args)",
    "explain": "explain(step)(*args)",
    "report": "report(path, step, *args)",
    "programs": "programs(step)(*args)",
}
