"""Backend "inductor": each Program compiled by Inductor's graph compiler. Fused kernels; the last bits may differ.

    lower: Program -> (list of inputs -> list of outputs)

A Program keeps eager's in-place calls. Inductor wants a functional graph, so the Program is traced once more through
torch's functionalization, which leaves one copy per mutated input at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradc.errors import UnsupportedError
from gradc.executor import interpret
from gradc.ir.program import Program
from gradc.torch_private import compile_fx_inner, functionalized_graph


def lower(program: Program) -> Callable[[list[Any]], list[Any]]:
    """Compile ``program`` at its first call, for the sizes it then has, and again for each new set of sizes."""
    interpreted = interpret.lower(program)
    compiled: dict[tuple[Any, ...], Callable[[list[Any]], list[Any]]] = {}

    def run(inputs: list[Any]) -> list[Any]:
        key = tuple(
            (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value for value in inputs
        )
        if key not in compiled:
            compiled[key] = _compile(interpreted, inputs)
        return list(compiled[key](inputs))

    return run


def _compile(interpreted: Callable[[list[Any]], list[Any]], inputs: list[Any]) -> Callable[[list[Any]], list[Any]]:
    try:
        graph, fakes = functionalized_graph(lambda *values: interpreted(list(values)), inputs)
    except RuntimeError as error:
        raise UnsupportedError("program that does not functionalize", str(error).split("\n")[0]) from error
    return compile_fx_inner(graph, fakes)
