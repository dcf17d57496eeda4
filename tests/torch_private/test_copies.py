"""``copy.copy`` and ``copy.deepcopy`` of objects in compiled code: what is copied is what Python copies."""

import copy

import pytest
import torch

import gradc
from gradc.bits import same_bits


class Steps(list):
    """Items, and an attribute."""

    def __init__(self, *items):
        super().__init__(items)
        self.note = "kept"


class Scales(dict):
    pass


class Slots:
    __slots__ = ("decay",)

    def __init__(self):
        self.decay = 0.5


class SlotsAndMore(Slots):
    def __init__(self):
        super().__init__()
        self.rate = 0.1


class WithoutCache:
    def __init__(self):
        self.rate, self.cache = 0.1, [1]

    def __getstate__(self):
        return {"rate": self.rate}


class Restored(WithoutCache):
    def __setstate__(self, state):
        self.rate, self.cache = state["rate"], []


class Made:
    def __init__(self, rate=0.1):
        self.rate = rate

    def __reduce__(self):
        return Made, (self.rate * 2,)


class New:
    def __new__(cls, rate=0.0):
        new = super().__new__(cls)
        new.rates = (rate,)
        return new

    def __getnewargs__(self):
        return (3.0,)


class Plain:
    def __init__(self):
        self.rate, self.items = 0.1, [1, 2]


def told(thing):
    """All that an object holds: its class, items, slots and attributes."""
    attributes = {name: getattr(thing, name) for name in (*getattr(thing, "__dict__", ()), "decay") if hasattr(thing, name)}
    return type(thing), list(thing.items() if isinstance(thing, dict) else thing if isinstance(thing, list) else ()), attributes


MAKERS = [lambda: Steps(1, 2), lambda: Scales(a=1.0), Slots, SlotsAndMore, WithoutCache, Restored, Made, New, Plain]
NAMES = ["list", "dict", "slots", "slots and more", "getstate", "setstate", "reduce", "getnewargs", "plain"]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("make", MAKERS, ids=NAMES)
def test_copies_hold_what_python_copies(make, copied):
    """Items of lists and dictionaries, slots, and what the class gives for a copy were lost."""

    def step(x, thing):
        return x.sin(), copied(thing)

    assert told(gradc.compile(step)(torch.ones(2), make())[1]) == told(step(torch.ones(2), make())[1])


def test_what_attributes_tell_is_copied_in_the_graph():
    def step(x, thing):
        other = copy.copy(thing)
        other.rate = 0.5
        return x * other.rate

    gradc.reset()
    x = torch.ones(2)
    assert same_bits(gradc.compile(step, fullgraph=True)(x, Plain()), step(x, Plain()))


@pytest.mark.parametrize("make", [lambda x: [x, 1], lambda x: {"a": x, "b": 1}], ids=["list", "dict"])
def test_lists_and_dictionaries_are_copied_in_the_graph(make):
    """``copy.copy`` calls the class's own method, ``dict.copy``, which ended the graph."""

    def step(x, thing):
        other, inner = copy.copy(thing), copy.copy(make(x))
        other.clear()
        return x.sin() * len(thing), inner, other

    gradc.reset()
    x, thing = torch.ones(2), make(torch.zeros(2))
    result, inner, other = gradc.compile(step, fullgraph=True)(x, thing)
    assert same_bits(result, x.sin() * 2) and len(thing) == len(inner) == 2 and other == type(other)()
    assert type(inner) is type(thing) and any(each is x for each in (inner.values() if isinstance(inner, dict) else inner))
