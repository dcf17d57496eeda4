"""Compile a Program by Inductor to a shared library, and try it out beside eager's kernels before anybody runs it.

    compile_program: (Program, inputs' layouts, threads) -> CandidateSpec

For the process that compiles in the background (inductor_worker.py): what goes wrong here goes wrong there. The Program is run
first by the native executor, on numbers made up for it; what that leaves behind, beside numbers, is what the code has to leave:
which outputs are inputs or views, what lies in one memory, strides, version counters, draws. Numbers may differ by rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from gradc import executor, native
from gradc.backends.side_effects import Left, left_by
from gradc.bits import same_bits
from gradc.errors import UnsupportedError
from gradc.executor.core import interpret
from gradc.executor.core.candidates import CandidateSpec, Input, Layout, with_constants
from gradc.ir.program import Program
from gradc.torch_private.inductor import compile_ahead, functionalized_graph

_SEED = 0
_LOOK_AT_NUMBERS = ("linalg", "cholesky", "inverse", "solve", "bernoulli", "multinomial")  # in the names of ops
# Of the greatest value of a result: how far a number may be off. Sums of thousands of terms are summed in another order.
_TOLERANCE = {torch.float64: 1e-8, torch.complex128: 1e-8, torch.float32: 1e-3, torch.complex64: 1e-3}
_TOLERANCE_OF_HALF = 5e-2


def compile_program(program: Program, layouts: Sequence[Input], num_threads: int) -> CandidateSpec:
    """See the module's docstring.

    Raises:
        UnsupportedError: if the code does not leave what the Program leaves.
        Exception: whatever Inductor raises.
    """
    torch.set_num_threads(num_threads)
    made = [_made_up(layout) for layout in layouts]
    inputs = _copies(made)
    reference, drawn = left_by(executor.lower(program), inputs, _SEED), torch.get_rng_state()
    _refuse_moved(inputs, layouts)
    positions = [i for i, (kind, _) in enumerate(reference.outputs) if kind == "made"]
    path, written = _compiled(program, positions, made)
    spec = CandidateSpec(
        path=path,
        num_threads=num_threads,
        inputs=tuple(layouts),
        outputs=reference.outputs,
        written=written,
        counted=reference.counted,
        views=reference.views,
        may_raise=_may_raise(program, layouts),
    )
    left = left_by(native.extension.Candidate(with_constants(spec, program)), inputs := _copies(made), _SEED)
    _refuse_moved(inputs, layouts)
    if not same_bits(drawn, torch.get_rng_state()):
        raise UnsupportedError("other draws of random numbers")
    _refuse_difference(reference, left)
    return spec


def _compiled(program: Program, outputs: list[int], inputs: list[Any]) -> tuple[str, tuple[int, ...]]:
    """The library's path, and which inputs it writes into. It takes tensors only, and makes new ones."""
    tensors = [position for position, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
    constants = tuple(program.constants)
    alone = dataclasses.replace(
        program, inputs=(*program.inputs, *constants), constants={}, outputs=tuple(program.outputs[i] for i in outputs)
    )
    run = interpret.lower(alone)

    def function(*values: Any) -> list[Any]:
        given = list(inputs)
        for position, value in zip(tensors, values, strict=False):
            given[position] = value
        return run([*given, *values[len(tensors) :]])

    graph, fakes = functionalized_graph(function, [inputs[i] for i in tensors] + list(program.constants.values()))
    placeholders = graph.graph.find_nodes(op="placeholder")
    copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    written = sorted({placeholders.index(node.args[0]) for node in copies if node.args[0] in placeholders})
    if any(position >= len(tensors) for position in written):
        raise UnsupportedError("constant that is written into")
    return compile_ahead(graph, fakes), tuple(tensors[i] for i in written)


def _may_raise(program: Program, layouts: Sequence[Input]) -> bool:
    """True if a call looks at numbers: at indices, or at those of a few ops."""
    dtypes = [layout.dtype for layout in layouts if isinstance(layout, Layout)]
    names = [call.op._schema.name for call in program.instructions]
    has_indices = any(not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool) for dtype in dtypes)
    return has_indices or any(part in name for name in names for part in _LOOK_AT_NUMBERS)


def _made_up(layout: Input) -> Any:
    """A tensor of the layout: floats between -1 and 1, zeros where numbers may be indices."""
    if not isinstance(layout, Layout):
        return layout
    size = 1 + sum((n - 1) * stride for n, stride in zip(layout.shape, layout.stride)) if 0 not in layout.shape else 0
    if layout.dtype.is_floating_point or layout.dtype.is_complex:
        memory = torch.rand(size).mul_(2).sub_(1).to(layout.dtype)
    elif layout.dtype is torch.bool:
        memory = torch.rand(size) < 0.5
    else:
        memory = torch.zeros(size, dtype=layout.dtype)
    return memory.as_strided(layout.shape, layout.stride)


def _copies(values: Sequence[Any]) -> list[Any]:
    """In memory of their own, as the values lie in theirs."""
    return [_copy(value) if isinstance(value, torch.Tensor) else value for value in values]


def _copy(value: torch.Tensor) -> torch.Tensor:
    memory = value.untyped_storage().clone()
    return torch.empty(0, dtype=value.dtype).set_(memory, 0, value.shape, value.stride())


def _refuse_moved(inputs: Sequence[Any], layouts: Sequence[Input]) -> None:
    for value, layout in zip(inputs, layouts, strict=True):
        if isinstance(layout, Layout) and (tuple(value.shape), value.stride()) != (layout.shape, layout.stride):
            raise UnsupportedError("input that changes its size")


def _refuse_difference(reference: Left, left: Left) -> None:
    for field in dataclasses.fields(Left):
        own, other = getattr(left, field.name), getattr(reference, field.name)
        if field.name != "values" and own != other:
            pairs = zip(own, other, strict=False)
            first = next((f"{a}, eager's {b}" for a, b in pairs if a != b), f"{len(own)}, eager's {len(other)}")
            raise UnsupportedError("results that lie otherwise", f"{field.name}: {first}")
    for number, (own, other) in enumerate(zip(left.values, reference.values, strict=True)):
        if isinstance(other, torch.Tensor) and not _is_close(own, other):
            raise UnsupportedError("results that are far from eager's", f"number {number}")


def _is_close(own: torch.Tensor, other: torch.Tensor) -> bool:
    if not (other.dtype.is_floating_point or other.dtype.is_complex):
        return same_bits(own, other)
    finite = other.isfinite()
    if not same_bits(own[~finite].nan_to_num(), other[~finite].nan_to_num()) or not same_bits(own.isfinite(), finite):
        return False
    difference, values = (own - other)[finite].abs(), other[finite].abs()
    limit = _TOLERANCE.get(other.dtype, _TOLERANCE_OF_HALF) * values.max() if values.numel() else 0.0
    return bool((difference <= limit).all())
