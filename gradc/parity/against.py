"""The compiler that a step is checked against, whatever it is: gradc, a backend of torch.compile, or a function.

    compiler_of: ("gradc" | backend's name | function) -> Compiler
    redirected:  Compiler -> a context in which torch.compile compiles with it

A step that calls torch.compile itself is not compiled as a whole: what it compiles, it compiles with the compiler that is asked
for. Whether it does is seen in eager, where ``Redirection`` counts, and what it compiles runs as it was written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gradc.backends import DEFAULT_BACKEND
from gradc.errors import ConfigError
from gradc.frontend.api import compile
from gradc.torch_private.dynamo import list_of_backends
from gradc.torch_private.patches import Patch, Replace
from gradc.torch_private.reexecution import is_compiled_by_torch

GRADC = "gradc"
Compile = Callable[[Any], Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class Compiler:
    """
    Attributes:
        name: for the report.
        compile: function or module -> a compiled one.
        is_counted: whether it goes through Dynamo, which counts its graphs.
        note: what was set so that the comparison says something, or "".
        unfused: one that runs the same traced graphs operation by operation, or None.
    """

    name: str
    compile: Compile
    is_counted: bool = True
    note: str = ""
    unfused: Compiler | None = None

    @property
    def is_gradc(self) -> bool:
        return self.name == GRADC


def compiler_of(against: Any, backend: str | None = None) -> Compiler:
    """``backend``: gradc's, where that is checked against.

    Raises:
        ConfigError: if torch.compile has no backend of this name, or ``backend`` is given for another compiler than gradc.
    """
    if backend is not None and against != GRADC:
        raise ConfigError(f"backend={backend!r} is a backend of gradc, but the check is against {against!r}. Leave it out.")
    if against == GRADC:
        return Compiler(GRADC, functools.partial(compile, backend=backend or DEFAULT_BACKEND))
    if callable(against):
        return Compiler(getattr(against, "__name__", type(against).__name__), against, is_counted=False)
    if against not in list_of_backends():
        known = ", ".join(list_of_backends())
        raise ConfigError(f"against={against!r}: torch.compile has no such backend. Use a function, or one of: {known}.")
    if against == "inductor":
        fused = functools.partial(_COMPILE, backend=against, options=_SAME_DRAWS)
        return Compiler(against, fused, note=_NOTE_OF_DRAWS, unfused=_of_torch("aot_eager"))
    return _of_torch(against)


def _of_torch(backend: str) -> Compiler:
    return Compiler(backend, functools.partial(_COMPILE, backend=backend))


# Else each mask of dropout is another, and a real fault is one difference among many.
_SAME_DRAWS = {"fallback_random": True}
_NOTE_OF_DRAWS = "Inductor was told to draw the random numbers of eager (fallback_random); of itself it draws others."

_COMPILE = torch.compile


class Redirection:
    """torch.compile, with another compiler, which itself may call torch.compile: it gets the real one, and so does torch.

    Attributes:
        num_calls: how often a program asked torch.compile for something.
        is_eager: what was compiled runs as it was written, where Dynamo's stance does not see to that.
    """

    def __init__(self, compiler: Compiler) -> None:
        self.compiler, self.num_calls, self.is_eager, self._is_compiling = compiler, 0, True, False

    def __call__(self, model: Any = None, *, disable: bool = False, **options: Any) -> Any:
        if self._is_compiling or is_compiled_by_torch():
            return _COMPILE(model, disable=disable, **options)
        if model is None:
            return functools.partial(self, disable=disable)
        if disable:
            return model
        self.num_calls += 1
        return self.compile(model) if self.compiler.is_counted else self._switching(model)

    @contextlib.contextmanager
    def with_compiler(self, compiler: Compiler) -> Iterator[None]:
        was, self.compiler = self.compiler, compiler
        try:
            yield
        finally:
            self.compiler = was

    def compile(self, model: Any) -> Callable[..., Any]:
        self._is_compiling = True
        try:
            return self.compiler.compile(model)
        finally:
            self._is_compiling = False

    def _switching(self, model: Any) -> Any:
        compiled = self.compile(model)

        @functools.wraps(model)
        def run(*args: Any, **kwargs: Any) -> Any:
            return (model if self.is_eager else compiled)(*args, **kwargs)

        return run


@contextlib.contextmanager
def redirected(compiler: Compiler) -> Iterator[Redirection]:
    redirection = Redirection(compiler)

    def make(original: Any) -> Callable[..., Any]:
        return functools.wraps(original)(lambda *args, **kwargs: redirection(*args, **kwargs))

    reason = "A step that says itself what is compiled is checked as it is, with the compiler that is asked for."
    patch = Patch("redirect_torch_compile", reason, (Replace(torch, "compile", make),))
    patch.apply()
    try:
        yield redirection
    finally:
        patch.undo()
