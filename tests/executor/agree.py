"""Capture a function as a Program, and check that the native executor and the interpreter do the same with it.

    capture:      (function, inputs) -> Program
    check_agree:  (function, inputs) -> native outputs, after comparing them with the interpreter's, bit for bit
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc.executor import interpret, native
from gradc.ir.program import Program
from gradc.ir.recorder import Recorder

Function = Callable[..., Any]


def capture(function: Function, inputs: Sequence[Any]) -> Program:
    with Recorder("captured") as recorder:
        for number, value in enumerate(inputs):
            recorder.add_input(value, f"input_{number}")
        outputs = function(*inputs)
    return recorder.program(list(outputs) if isinstance(outputs, (tuple, list)) else [outputs])


def check_agree(function: Function, inputs: Sequence[Any]) -> list[Any]:
    program = capture(function, copies(inputs))
    results = []
    for lower in (interpret.lower, native.lower):
        arguments = copies(inputs)
        state = torch.get_rng_state()
        outputs = lower(program)(list(arguments))
        results.append((outputs, arguments, torch.get_rng_state()))
        torch.set_rng_state(state)
    (expected, expected_inputs, expected_state), (got, got_inputs, got_state) = results
    assert len(got) == len(expected)
    for one, other in zip([*got, *got_inputs, got_state], [*expected, *expected_inputs, expected_state]):
        assert_same(one, other)
    return got


def copies(inputs: Sequence[Any]) -> list[Any]:
    """Fresh tensors with the same strides, leaves where the originals are."""
    return [
        value.detach().clone(memory_format=torch.preserve_format).requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor)
        else value
        for value in inputs
    ]


def assert_same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if not isinstance(got, torch.Tensor):
        assert got == expected
        return
    assert (got.dtype, got.shape, got.layout, got.is_conj()) == (expected.dtype, expected.shape, expected.layout, expected.is_conj())
    if got.layout is torch.strided:
        assert got.stride() == expected.stride() and got.storage_offset() == expected.storage_offset()
        got, expected = got.detach().resolve_conj().resolve_neg(), expected.detach().resolve_conj().resolve_neg()
        assert got.contiguous().view(torch.uint8).equal(expected.contiguous().view(torch.uint8)) if got.dim() else got.reshape(
            1
        ).view(torch.uint8).equal(expected.reshape(1).view(torch.uint8))
    else:
        assert torch.equal(got.to_dense(), expected.to_dense())
