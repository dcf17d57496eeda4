"""Dataclasses as keys in compiled code: those are equal, and found, that their class says are."""

import dataclasses

import pytest
import torch

import gradc


@dataclasses.dataclass(frozen=True)
class Layer:
    number: int
    note: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Unhashed:
    number: int
    note: str = dataclasses.field(default="", hash=False)


@dataclasses.dataclass(frozen=True)
class Parity:
    number: int

    def __hash__(self):
        return self.number % 2

    def __eq__(self, other):
        return self.number % 2 == other.number % 2


@dataclasses.dataclass(frozen=True)
class AllFields:
    number: int
    note: str = ""


class Derived(Layer):
    pass


KEYS = [(Layer, (1, "b")), (Unhashed, (1, "")), (Parity, (3,)), (AllFields, (1,)), (Derived, (1, "b"))]


@pytest.mark.parametrize(("cls", "other"), KEYS)
def test_a_frozen_dataclass_is_found_as_a_key(cls, other):
    """Its hash was that of all fields."""

    def step(x):
        scales = {cls(1): 0.5}
        found = scales.get(cls(*other), 1.0)
        return x * found, found, cls(*other) in {cls(1)}, len({cls(1), cls(*other)}), hash(cls(1)) == hash(cls(*other))

    gradc.reset()
    x = torch.ones(2)
    assert gradc.compile(step)(x)[1:] == step(x)[1:] == (0.5, True, 1, True)


@pytest.mark.skipif(torch.__version__ >= (2, 14), reason="Dynamo asks the class which keys are equal: the graph ends")
def test_the_hash_of_all_fields_is_calculated_in_the_graph():
    def step(x):
        return x * {AllFields(1, "a"): 0.5}[AllFields(1, "a")]

    gradc.reset()
    assert gradc.compile(step, fullgraph=True)(torch.ones(2)).tolist() == [0.5, 0.5]
