"""A hand-made capture is cut at its boundaries: what each piece reads, hands on and lets die."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch

from gradc import native
from gradc.bits import same_bits
from gradc.capture.recording import Boundary, Captured, EngineState, Expected, Ran, Span, Waiting
from gradc.errors import UnsupportedError
from gradc.executor.core import interpret
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, Slot
from gradc.replay.pieces import parts_of
from gradc.replay.spec import RecordingSpec, recording_spec

aten = torch.ops.aten
needs_native = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))


def call(op: Any, out: int, *slots: int) -> Instruction:
    return Instruction(op.default, tuple(map(Ref, slots)), {}, (out,))


def captured(*instructions: Instruction, num_inputs: int = 1, **fields: Any) -> Captured:
    """Slots are numbered from the inputs on."""
    numbers = [out for instruction in instructions for out in instruction.outs if out is not None]
    numbers += [slot for event in fields.get("events", ()) if isinstance(event, Boundary) for slot in event.outputs]
    slots = tuple(Slot(f"v{number}") for number in range(max([num_inputs, *numbers]) + 1))
    chosen = {"twins": {}, "constants": {}, "events": (), "results": (), **fields}
    return Captured(inputs=tuple(range(num_inputs)), slots=slots, instructions=instructions, **chosen)


def spec_of(one: Captured) -> tuple[RecordingSpec, list[Program]]:
    """The spec, and what was given to the backend, from the first piece on."""
    programs: list[Program] = []

    def lower(program: Program) -> Any:
        programs.insert(0, program)
        return interpret.lower(program)

    return recording_spec(one, lower), programs


def test_a_graph_without_boundaries_is_one_piece() -> None:
    one = captured(call(aten.sin, 1, 0), call(aten.exp, 2, 1), events=(Ran(0, calls=Span(0, 2)),), results=(2,))
    spec, (program,) = spec_of(one)
    (piece,) = spec.pieces
    assert (piece.inputs, piece.dying, piece.outputs, piece.nodes) == ((0,), (0,), (2,), (0,))
    assert not spec.boundaries and spec.results == (2,)
    assert len(program.slots) == 3
    x = torch.tensor([0.5])
    (result,) = interpret.lower(program)([x])
    assert same_bits(result, x.sin().exp())


def test_a_call_that_nobody_needs_is_left_out() -> None:
    one = captured(call(aten.sin, 1, 0), call(aten.exp, 2, 0), events=(Ran(0, calls=Span(0, 2)),), results=(1,))
    _, (program,) = spec_of(one)
    assert [str(call.op) for call in program.instructions] == ["aten.sin.default"]


def around_a_boundary(**fields: Any) -> Captured:
    """input 0 -> sin 1 -> live node: 2 -> exp 3."""
    boundary = Boundary(node=1, position=1, inputs=(1,), outputs=(2,), is_stealable=(True,), **fields)
    events = (Ran(0, calls=Span(0, 1)), boundary, Ran(2, calls=Span(1, 2)))
    return captured(call(aten.sin, 1, 0), call(aten.exp, 3, 2), events=events, results=(3,))


def test_a_boundary_cuts() -> None:
    one = around_a_boundary()
    assert [len(part.instructions) for part in parts_of(one)] == [1, 1]
    spec, programs = spec_of(one)
    first, last = spec.pieces
    (boundary,) = spec.boundaries
    assert (first.inputs, first.outputs, last.inputs, last.outputs) == ((0,), (1,), (2,), (3,))
    assert (first.nodes, last.nodes) == ((0,), (2,))
    assert boundary.boundary is one.boundaries[0]
    assert boundary.dying == (1,)
    assert len(programs) == 2


def test_what_waits_at_a_boundary_is_kept_until_there() -> None:
    state = EngineState(newly_done=(0, 1), not_ready=(Waiting(2, (0, -1)),), results=(-1,))
    spec, _ = spec_of(around_a_boundary(after=state))
    assert spec.pieces[0].dying == ()  # the state after the boundary holds it
    assert spec.boundaries[0].dying == (0, 1)


def test_what_is_taken_and_waits_too_dies_with_the_run() -> None:
    spec, _ = spec_of(around_a_boundary(after=EngineState(ready=(Waiting(2, (1,)),))))
    assert spec.boundaries[0].dying == ()


def test_a_piece_without_calls_needs_no_runner() -> None:
    boundary = Boundary(node=0, position=0, inputs=(0,), outputs=(2,))
    spec, programs = spec_of(captured(events=(boundary,), results=(2,)))
    assert [piece.runner for piece in spec.pieces] == [None, None] and not programs


def test_a_leaf_gets_the_gradient_itself_not_a_handle_of_it() -> None:
    calls = call(aten.sin, 1, 0), call(aten.detach, 2, 1)
    spec, (program,) = spec_of(captured(*calls, events=(Ran(0, is_leaf=True, grad=2, calls=Span(0, 2)),)))
    (piece,) = spec.pieces
    assert (piece.grads, piece.leaves, piece.outputs) == (((0, 2),), (0,), (2,))
    assert [str(call.op) for call in program.instructions] == ["aten.sin.default"]


def test_a_constant_is_no_input() -> None:
    one = captured(call(aten.mul.Tensor._overloadpacket, 2, 0, 1), results=(2,), constants={1: torch.tensor(2.0)})
    one = dataclasses.replace(one, instructions=(Instruction(aten.mul.Tensor, (Ref(0), Ref(1)), {}, (2,)),))
    spec, (program,) = spec_of(one)
    assert spec.pieces[0].inputs == (0,) and list(program.constants) == [1]


def test_a_value_that_only_the_capture_had_is_refused() -> None:
    one = captured(call(aten.sin, 3, 2), results=(3,))
    with pytest.raises(UnsupportedError, match="value that only the capture had: v2"):
        spec_of(one)


def test_a_spec_is_frozen() -> None:
    spec, _ = spec_of(around_a_boundary())
    for value in (spec, spec.pieces[0], spec.boundaries[0], spec.boundaries[0].boundary):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.inputs = ()  # type: ignore[misc, union-attr]


def test_work_grows_with_the_recording_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook after each of n calls: each piece is made from its own part alone."""
    seen = []
    monkeypatch.setattr("gradc.replay.pieces.pipeline.run", lambda passes, program, *name: seen.append(program) or program)
    n = 50
    instructions = tuple(call(aten.sin, 2 * k + 1, 2 * k) for k in range(n))
    events = tuple(Boundary(node=k, position=k + 1, inputs=(2 * k + 1,), outputs=(2 * k + 2,)) for k in range(n))
    one = captured(*instructions, events=events, results=(2 * n,))
    spec_of(one)
    assert sum(len(program.instructions) for program in seen) == n
    assert all(program.slots is one.slots for program in seen)


def test_a_gradient_that_two_leaves_get_is_given_to_one_as_it_is() -> None:
    calls = call(aten.sin, 1, 0), call(aten.detach, 2, 1), call(aten.detach, 3, 1)
    events = (Ran(0, is_leaf=True, grad=2, calls=Span(0, 2)), Ran(1, is_leaf=True, grad=3, calls=Span(2, 3)))
    spec, (program,) = spec_of(captured(*calls, events=events))
    assert spec.pieces[0].grads == ((0, 2), (1, 3))
    assert [str(call.op) for call in program.instructions] == ["aten.sin.default", "aten.detach.default"]


def recording_of(spec: Any) -> Any:
    loss = torch.ones(3, requires_grad=True).sum()
    extension = native.extension
    walk = extension.Walk([loss], [torch.ones_like(loss)], False, (), True)
    return extension.Recording(walk, spec, [])


def without(spec: Any, field: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{name: value for name, value in vars(spec).items() if name != field})


@needs_native
def test_a_recording_is_made_of_its_spec() -> None:
    spec, _ = spec_of(around_a_boundary(expected=(Expected(b"float", (3,), torch.float32),)))
    assert recording_of(spec).num_boundaries == 1


@needs_native
def test_a_missing_field_is_named() -> None:
    spec, _ = spec_of(around_a_boundary())
    with pytest.raises(ValueError, match=r"RecordingSpec\.num_slots is missing"):
        recording_of(without(spec, "num_slots"))
    pieces = (without(spec.pieces[0], "dying"), spec.pieces[1])
    with pytest.raises(ValueError, match=r"Piece\.dying is missing"):
        recording_of(dataclasses.replace(spec, pieces=pieces))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"BoundarySpec\.boundary is missing"):
        recording_of(dataclasses.replace(spec, boundaries=(without(spec.boundaries[0], "boundary"),)))  # type: ignore[arg-type]


def with_another(spec: Any) -> Any:
    return types.SimpleNamespace(**vars(spec), colour="red")


@needs_native
def test_a_field_that_nobody_knows_is_named() -> None:
    spec, _ = spec_of(around_a_boundary(expected=(Expected(b"float", (3,), torch.float32),)))
    with pytest.raises(ValueError, match=r"RecordingSpec\.colour is unknown"):
        recording_of(with_another(spec))
    with pytest.raises(ValueError, match=r"Piece\.colour is unknown"):
        recording_of(dataclasses.replace(spec, pieces=(with_another(spec.pieces[0]), spec.pieces[1])))
    (one,) = spec.boundaries
    boundary = one.boundary
    changed = {
        "BoundarySpec": with_another(one),
        "Boundary": dataclasses.replace(one, boundary=with_another(boundary)),
        "EngineState": dataclasses.replace(one, boundary=dataclasses.replace(boundary, after=with_another(boundary.after))),
        "Expected": dataclasses.replace(
            one, boundary=dataclasses.replace(boundary, expected=(with_another(boundary.expected[0]),))
        ),
    }
    for name, other in changed.items():
        with pytest.raises(ValueError, match=rf"{name}\.colour is unknown"):
            recording_of(dataclasses.replace(spec, boundaries=(other,)))


@needs_native
def test_a_value_that_the_recording_does_not_know_is_named() -> None:
    spec, _ = spec_of(around_a_boundary(after=EngineState(ready=(Waiting("last", ()),))))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"EngineState\.ready cannot be Waiting\(node="):
        recording_of(spec)
    spec, _ = spec_of(around_a_boundary(expected=(Expected(b"float", ("three",), torch.float32),)))
    with pytest.raises(ValueError, match=r"Expected\.numbers cannot be 'three'"):
        recording_of(spec)
    with pytest.raises(ValueError, match=r"RecordingSpec\.num_slots cannot be -1"):
        recording_of(dataclasses.replace(spec_of(around_a_boundary())[0], num_slots=-1))
