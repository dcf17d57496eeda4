"""What a capture hands over: frozen, without tensors, complete when it is made."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import weakref
from typing import Any

import pytest
import torch

from gradc import native
from gradc.bits import same_bits
from gradc.capture.capture import capture
from gradc.capture.recording import Boundary, Captured, EngineState, HookKind, Ran, Report, Waiting
from tests import forked


def captured(loss: torch.Tensor) -> tuple[Captured, Report]:
    extension = native.extension
    walk = extension.Walk([loss], [torch.ones_like(loss)], False, (), True)
    _, found, report = capture(walk)
    return found, report


def ops(found: Captured) -> list[str]:
    return [str(call.op) for call in found.instructions]


def test_nodes_are_recorded_in_the_engine_s_order() -> None:
    x = torch.ones(3, requires_grad=True)
    found, report = captured(x.sin().sum())
    assert [report.names[event.node] for event in found.events] == [
        "SumBackward0",
        "SinBackward0",
        "torch::autograd::AccumulateGrad",
    ]
    assert all(isinstance(event, Ran) for event in found.events) and not found.failure
    assert ops(found)[0] == "aten.expand.default"
    last = found.events[-1]
    assert isinstance(last, Ran) and last.is_leaf and last.grad >= 0
    spans = [event.calls for event in found.events if isinstance(event, Ran)]
    assert spans[0].start == 0 and all(a.stop <= b.start for a, b in itertools.pairwise(spans))
    assert x.grad is not None and same_bits(x.grad, torch.ones(3).cos())


def test_a_hook_makes_a_boundary_with_the_state_after_it() -> None:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    hidden = x.sin()
    hidden.register_hook(lambda grad: grad * 2)
    found, report = captured((hidden * y).sum())
    boundary, leaf = found.boundaries  # a leaf whose gradient a boundary has seen is one, too
    assert report.names[boundary.node] == "SinBackward0" and leaf.node > boundary.node
    assert report.hooks == {boundary.node: (HookKind.TENSOR_PRE,)}
    assert len(boundary.inputs) == len(boundary.outputs) == len(boundary.expected) == len(boundary.is_stealable) == 1
    (expected,) = boundary.expected
    assert expected.dtype is torch.float32 and expected.numbers == (3, 1)
    assert boundary.node in boundary.after.newly_done
    assert boundary.after.slots() <= set(range(len(found.slots)))


def hooked_chain(length: int) -> torch.Tensor:
    hidden = torch.ones(3, requires_grad=True)
    for _ in range(length):
        hidden = hidden.sin()
        hidden.register_hook(lambda grad: grad * 2)
    return hidden.sum()


@pytest.mark.parametrize("length", [1, 20, 40])
def test_the_states_after_boundaries_name_each_node_once(length: int) -> None:
    """Each copied what had run so far: a chain of twice as many hooked nodes took four times as much."""
    found, _ = captured(hooked_chain(length))
    states = [boundary.after for boundary in found.boundaries]
    done = [node for state in states for node in state.newly_done]
    assert done == list(dict.fromkeys(done)) and len(done) == length + 2
    assert sum(len(waiting.inputs) for state in states for waiting in (*state.ready, *state.not_ready)) <= len(states)
    assert all(boundary.node == state.newly_done[-1] for boundary, state in zip(found.boundaries, states, strict=True))


def test_state_needs_what_waits_and_what_is_a_result() -> None:
    state = EngineState((0,), (Waiting(1, (3, -1)),), (Waiting(2, (4,)),), (5, -1))
    assert state.slots() == {3, 4, 5}


def test_twins_lead_to_the_first_handle() -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        y = x.detach()
    found, _ = captured((x * y).sum() + (x * x).sum())
    assert set(found.twins.values()) <= set(found.inputs) and not set(found.twins) & set(found.twins.values())


def test_a_capture_is_frozen() -> None:
    x = torch.ones(3, requires_grad=True)
    hidden = x.sin()
    hidden.register_hook(lambda grad: None)
    found, _ = captured(hidden.sum())
    for value in (found, found.events[0], found.boundaries[0], found.boundaries[0].after):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.node = 7  # type: ignore[misc, union-attr]
    hash((found.events[0], Boundary(0, 0, (), ())))


def test_no_tensor_is_held() -> None:
    x = torch.ones(3, requires_grad=True)
    saved = x.sin()
    loss = (saved * saved).sum()
    held = weakref.ref(saved)
    gc.disable()
    try:
        found, report = captured(loss)
        del saved, loss
        assert held() is None, "without help of the collector"
    finally:
        gc.enable()
    assert found.instructions and report.program


def test_a_function_that_reads_data_is_a_boundary() -> None:
    x = torch.ones(3, requires_grad=True)

    class Peeks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad * grad.sum().item()

    found, report = captured(Peeks.apply(x).sum())
    assert not found.failure and report.names[found.boundaries[0].node] == "PeeksBackward"


FIRST_CAPTURE_UNDER_A_MODE = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from gradc import native
from gradc.capture.capture import capture

class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        print(op)
        return op(*args, **(kwargs or {}))

loss = torch.ones(3, requires_grad=True).sum()
walk = native.extension.Walk([loss], [torch.ones_like(loss)], False, (), True)
with Seen():
    capture(walk)
"""


def test_the_first_capture_makes_nothing_of_its_own_under_a_mode() -> None:
    """What stands for the engine's root is made once in a process, and not by the dispatcher."""
    found = forked.python("-c", FIRST_CAPTURE_UNDER_A_MODE)
    assert found.returncode == 0, found.stderr
    assert "aten.expand.default" in found.stdout and "aten.zeros.default" not in found.stdout
