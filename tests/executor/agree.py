"""Capture a function as a Program, and check that the native executor and the interpreter do the same with it.

capture:      (function, inputs) -> Program
check_agree:  (function, inputs) -> None      outputs, mutated inputs and random state, bit for bit, of the native
                                              executor against eager and against the interpreter
allocations:  (profile) -> list of bytes      what a profile with memory saw
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._profiler import _ExtraFields_Allocation
from torch.utils._python_dispatch import TorchDispatchMode

from gradc import executor
from gradc.bits import same_bits
from gradc.executor.core import interpret
from gradc.ir.program import Program
from gradc.ir.recorder import Recorder

Function = Callable[..., Any]


class Probe(TorchDispatchMode):
    """Calls ``look`` before each op that runs."""

    def __init__(self, look):
        super().__init__()
        self.look = look

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.look(op)
        return op(*args, **(kwargs or {}))


def capture(function: Function, inputs: Sequence[Any]) -> Program:
    with Recorder("captured") as recorder:
        for number, value in enumerate(inputs):
            recorder.add_input(value, f"input_{number}")
        outputs = function(*inputs)
    return recorder.program(list(outputs) if isinstance(outputs, (tuple, list)) else [outputs])


def check_agree(function: Function, inputs: Sequence[Any], *, others: Sequence[str] = ("eager", "interpreter")) -> None:
    program = capture(function, copies(inputs))
    runners = {"eager": lambda values: _eager(function, values), "interpreter": interpret.lower(program)}
    expected = [_run(runners[other], inputs) for other in others]
    native = executor.lower(program)
    for _ in range(2):  # the second run is by stretches, which are found when one has gone as foreseen
        got = _run(native, inputs)
        for other in expected:
            for one, another in zip(got, other, strict=True):
                assert_same(one, another)


def _eager(function: Function, values: list[Any]) -> list[Any]:
    outputs = function(*values)
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _run(runner: Callable[[list[Any]], list[Any]], inputs: Sequence[Any]) -> list[Any]:
    """Outputs, inputs after the run, and the state of the generator after it; which is then put back."""
    arguments, state = copies(inputs), torch.get_rng_state()
    outputs = runner(list(arguments))
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    return [*outputs, *arguments, after]


def copies(inputs: Sequence[Any]) -> list[Any]:
    """Fresh tensors with the same strides, leaves where the originals are."""
    return [
        value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
        for value in inputs
    ]


def assert_same(got: Any, expected: Any) -> None:
    if not isinstance(got, torch.Tensor):
        assert same_bits(got, expected)
        return
    got, expected = got.detach(), expected.detach()
    assert _description(got) == _description(expected)
    assert same_bits(got, expected)


def _description(tensor: torch.Tensor) -> tuple[Any, ...]:
    layout = (tensor.stride(), tensor.storage_offset()) if tensor.layout is torch.strided else ()
    return (tensor.dtype, tensor.shape, tensor.layout, tensor.is_conj(), tensor.is_neg(), *layout)


def allocations(profile: torch.profiler.profile) -> list[int]:
    """The bytes of each allocation that a profile with memory saw, negative where they were freed."""
    events, sizes = profile.profiler.kineto_results.experimental_event_tree(), list[int]()
    while events:
        event = events.pop()
        events.extend(event.children)
        if isinstance(event.extra_fields, _ExtraFields_Allocation):
            sizes.append(event.extra_fields.alloc_size)
    return sizes
