"""Backend "inductor": each Program compiled by Inductor's graph compiler. Fused kernels; the last bits may differ.

    lower: Program -> (list of inputs -> list of outputs)

A Program keeps eager's in-place calls. Inductor wants a functional graph of its own smaller set of ops, so the Program is
traced once more, through torch's functionalization and Inductor's decompositions; what was mutated is copied back at the
end. All else stays eager's: dtypes, strides, which outputs alias, version counters, and the draws of random numbers, for
which Inductor is told to call eager's kernels.

What Inductor cannot compile is interpreted, and counted as a fallback.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import torch

from gradc.errors import UnsupportedError
from gradc.executor import Runner
from gradc.executor.core import interpret
from gradc.ir.program import Program
from gradc.journal import count, fallback
from gradc.torch_private.autograd import storage_key
from gradc.torch_private.fakes import fake_mode_for
from gradc.torch_private.inductor import compile_fx_inner, functionalized_graph

MAX_SIZES = 8  # distinct layouts of the inputs that a Program is compiled for; seconds each. The next ones are interpreted.

_tracing = threading.Lock()  # make_fx sets a flag for the whole process


@dataclasses.dataclass(frozen=True)
class _Compiled:
    """What Inductor made, and what it must be made to keep.

    ``mutated``: positions of the inputs that the code writes to. ``counted``: (position, number of times) that eager
    counts up the version of an input; a batch norm's statistics are mutated, but not counted. ``strides``: of the outputs.
    """

    run: Runner
    mutated: tuple[int, ...]
    counted: tuple[tuple[int, int], ...]
    strides: tuple[tuple[int, ...] | None, ...]


def lower(program: Program) -> Runner:
    """Compile ``program`` at its first call, for the layouts its inputs then have, and again for each new set of them."""
    interpreted = interpret.lower(program)
    compiled: dict[tuple[Any, ...], _Compiled | None] = {}

    def run(inputs: list[Any]) -> list[Any]:
        key = tuple(map(_layout, inputs))
        if key not in compiled:
            compiled[key] = _compile(program, interpreted, inputs) if len(compiled) < MAX_SIZES else None
        code = compiled[key]
        if code is None or _is_aliased(inputs, code.mutated):
            count("executor", "programs_interpreted")
            return interpreted(inputs)
        return _run(code, inputs)

    return run


def _layout(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return (value.dtype, value.device, value.layout, value.shape, value.stride() if value.layout is torch.strided else None)


def _is_aliased(inputs: list[Any], mutated: tuple[int, ...]) -> bool:
    """True if a mutated input shares memory with another one: Inductor's code takes all of them to be distinct.

    Asked of each call's tensors: two inputs may share memory in one call and not in the next, which ir.aliases cannot know.
    """
    if not mutated:
        return False
    storages = [storage_key(v) if isinstance(v, torch.Tensor) else None for v in inputs]
    return any(storages.count(storages[position]) > 1 for position in mutated)


def _run(code: _Compiled, inputs: list[Any]) -> list[Any]:
    versions = [(inputs[position], inputs[position]._version + times) for position, times in code.counted]
    with interpret.below_autograd():
        outputs = list(code.run(inputs))
        inputs.clear()
        for position, stride in enumerate(code.strides):
            out = outputs[position]
            if stride is not None and out.stride() != stride:
                outputs[position] = torch.empty_strided(out.shape, stride, dtype=out.dtype, device=out.device).copy_(out)
    for value, version in versions:  # fused code writes behind autograd's back; a kernel of eager's has counted already
        while value._version < version:
            torch.autograd.graph.increment_version(value)
    return outputs


def _compile(program: Program, interpreted: Runner, inputs: list[Any]) -> _Compiled | None:
    try:
        with _tracing:
            return _compile_or_raise(lambda *values: interpreted(list(values)), inputs)
    except Exception as error:  # whatever a compiler of several hundred thousand lines raises, eager's kernels serve
        where = next((instruction.where for instruction in program.instructions if instruction.where), "")
        fallback("program that Inductor cannot compile", f"{type(error).__name__}: {str(error).strip().splitlines()[0]}", where)
        return None


def _compile_or_raise(function: Callable[..., list[Any]], inputs: list[Any]) -> _Compiled:
    if any(isinstance(value, torch.Tensor) and value.layout is not torch.strided for value in inputs):
        raise UnsupportedError("input that is not strided")
    with fake_mode_for(inputs) as fakes:
        tensors = [(position, fake, fake._version) for position, fake in enumerate(fakes) if isinstance(fake, torch.Tensor)]
        results = function(*fakes)
        counted = tuple((position, fake._version - before) for position, fake, before in tensors if fake._version != before)
    graph, fakes = functionalized_graph(function, inputs)
    placeholders = graph.graph.find_nodes(op="placeholder")
    copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return _Compiled(
        run=compile_fx_inner(graph, fakes),
        mutated=tuple(sorted({placeholders.index(node.args[0]) for node in copies if node.args[0] in placeholders})),
        counted=counted,
        strides=tuple(result.stride() if isinstance(result, torch.Tensor) else None for result in results),
    )
