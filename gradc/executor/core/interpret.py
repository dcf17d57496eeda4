"""Run a Program in Python: the reference every other executor is compared with.

    lower: Program -> (list of inputs -> list of outputs)

The printed text of the Program is compiled and called, so that what a report shows is what runs. Each op is called
through the dispatcher without gradient recording, and with the autocast state its kernel saw when captured. The list of
inputs is emptied.
"""

from __future__ import annotations

import contextlib
import linecache
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gradc.ambient import AutocastState, autocast_set_to, set_autocast
from gradc.ir.floats import TERMS
from gradc.ir.program import Program
from gradc.ir.text import render
from gradc.ir.values import leaves
from gradc.torch_private import modes

Runner = Callable[[list[Any]], list[Any]]
_OFF = AutocastState()


def lower(program: Program) -> Runner:
    """Compile ``program`` to a Python function. Thread-safe and re-entrant: nothing outlives a call."""
    source, namespace = render(program)
    filename = f"<gradc {program.name} {id(program):#x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {"torch": torch, "math": math, "set_autocast": set_autocast, "flatten": _flatten}
    scope |= {**TERMS, **namespace}
    exec(compile(source, filename, "exec"), scope)
    function = scope[program.name]

    def run(inputs: list[Any]) -> list[Any]:
        with below_autograd():
            return function(inputs)

    return run


@contextlib.contextmanager
def below_autograd() -> Iterator[None]:
    """No gradient recording and no autocast inside, whatever is ambient; what the block leaves behind is undone.

    Grad mode is on, as in the native executor: mkldnn_rnn_layer makes the workspace that its backward needs only then.
    """
    with autocast_set_to(_OFF), modes.below_autograd(), torch.enable_grad():
        yield


def _flatten(tree: Any) -> list[Any]:
    return list(leaves(tree))
