"""Nothing writes to a tape once it is recorded, nor to what is read off it."""

import dataclasses

import pytest
import torch

from gradc.backends import lookup_backend
from gradc.backward.settings import Settings
from gradc.region.region import build_region
from tests.analysis.taped import taped


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def f(a, b):
    h = (a * b).sin()
    view = a.view(-1)
    return h, view, h.sum() + view.sum()


def outline(region):
    """A region without the objects that are made anew for each."""
    segments = [
        (segment.nodes, segment.entries, segment.num_tangents, segment.exits, segment.saved) for segment in region.segments
    ]
    primals = [(primal.name, primal.of) for primal in region.hoisted.primals]
    return str(region.forward), segments, region.live_order, primals, region.returned.of_saved


def test_writing_raises():
    found = taped(f, leaf(2, 2), leaf(2, 2))
    for value in (found.tape, found.facts, found.hoisted, found.outputs):
        for field in dataclasses.fields(value):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(value, field.name, None)


def test_its_collections_have_no_way_to_change():
    tape = taped(f, leaf(2, 2), leaf(2, 2)).tape
    for field in dataclasses.fields(tape):
        assert not isinstance(getattr(tape, field.name), (list, dict, set)), field.name


def test_two_regions_of_one_tape_are_equal():
    tape = taped(f, leaf(2, 2), leaf(2, 2)).tape
    before = {field.name: getattr(tape, field.name) for field in dataclasses.fields(tape)}
    one, other = (build_region(tape, Settings(lookup_backend("eager")), "f") for _ in range(2))
    assert outline(one) == outline(other)
    assert all(getattr(tape, name) is value for name, value in before.items())


def test_a_region_split_at_leaves_has_the_same_tape_inputs_and_outputs():
    region = build_region(taped(f, leaf(2, 2), leaf(2, 2)).tape, Settings(lookup_backend("eager")), "f")
    split = region.split_at_leaves
    assert split.is_split_at_leaves and not region.is_split_at_leaves
    assert split.hoisted is region.hoisted and split.outputs is region.outputs
    assert len(split.segments) > len(region.segments)


def test_running_a_region_leaves_its_tape():
    x, w = leaf(3), leaf(3)
    region = build_region(taped(lambda a, b: (a * b).sin().sum(), x, w).tape, Settings(lookup_backend("eager")), "f")
    before = {field.name: getattr(region.tape, field.name) for field in dataclasses.fields(region.tape)}
    (loss,) = region(x, w)
    first = torch.autograd.grad(loss, [x, w], create_graph=True)
    torch.autograd.grad(sum(grad.sum() for grad in first), [x, w])
    assert all(getattr(region.tape, name) is value for name, value in before.items())
