"""The keys that native nodes hold, as numbers, are those of Python: field by field, and word by word."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

import gradc
from gradc import native
from gradc.ambient import NO_AUTOCAST, AutocastState, ambient
from gradc.backward.key import BackwardKey
from gradc.region.region import Region
from tests.backward.test_key import region_of
from tests.oracle import leaf
from tests.test_ambient import each_setting

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))
grad = torch.autograd.grad


def held_by_python(region: Region, number: int = 0) -> set[BackwardKey]:
    return {key for key, _ in region.backwards._compiled[number].items()}


def held_by_native(region: Region, number: int = 0) -> set[BackwardKey]:
    return set(region.native_keys(number))


def assert_same(region: Region, num_keys: int, number: int = 0) -> None:
    """Native nodes hold so many keys, each as Python has it; Python may have compiled one before any backward."""
    native_, python = held_by_native(region, number), held_by_python(region, number)
    assert len(native_) == num_keys and native_ <= python
    assert {str(key) for key in native_} <= {str(key) for key in python}


def test_before_a_backward_no_node_holds_a_key():
    _, region = region_of(lambda x: x.sin(), leaf(2, 3)())
    assert region.native_keys(0) == []


TANGENTS = {
    "contiguous": torch.ones(2, 3),
    "transposed": torch.ones(3, 2).t(),
    "expanded": torch.ones(()).expand(2, 3),
    "strided": torch.ones(4, 6)[::2, ::2],
}


@pytest.mark.parametrize("tangent", TANGENTS.values(), ids=TANGENTS)
def test_the_layout_of_a_gradient(tangent: torch.Tensor):
    x = leaf(2, 3)()
    y, region = region_of(lambda x: x.sin(), x)
    grad(y, x, tangent)
    assert_same(region, 1)
    (key,) = held_by_native(region)
    meta = key.tangents[0]
    assert meta is not None and (meta.shape, meta.stride) == (tuple(tangent.shape), tangent.stride())


def test_one_gradient_of_two_and_what_is_needed():
    x, y = leaf(3)(), leaf(3)()
    (a, b), region = region_of(lambda x, y: ((x * y).sin(), (x * y).cos()), x, y)
    grad(a, x, torch.ones(3), retain_graph=True)
    grad([a, b], [x, y], [torch.ones(3), torch.ones(3)], retain_graph=True)
    assert_same(region, 2)
    assert {key.needed for key in held_by_native(region)} == {(True, False), (True, True)}
    assert {key.tangents[1:] for key in held_by_native(region)} == {(None,)}  # of x * y, which nothing outside reads
    assert_same(region, 1, number=1)


def test_gradients_of_one_leaf_that_are_added_up():
    x = leaf(3)()
    y, region = region_of(lambda x: x.sin() * x.cos(), x)
    y.sum().backward()
    assert_same(region, 1)
    assert [key.adds_up for key in held_by_native(region)] == [True]


@each_setting
def test_the_ambient_state(field: str, setting: Any):
    x = leaf(3)()
    y, region = region_of(lambda x: x.tanh(), x)
    for around in (contextlib.nullcontext, setting):
        with around():
            grad(y, x, torch.ones(3), retain_graph=True)
    assert_same(region, 2)
    one, other = held_by_native(region)
    assert getattr(one.ambient, field) != getattr(other.ambient, field)


@pytest.mark.parametrize(
    ("forced", "seen"),
    [("off", NO_AUTOCAST), ([{"device_type": "cpu", "dtype": torch.float16}], AutocastState((("cpu", torch.float16),)))],
)
def test_autocast_that_a_setting_names(forced: Any, seen: AutocastState):
    x = leaf(3)()
    with gradc.config.patch(backward_pass_autocast=forced), torch.autocast("cpu", torch.bfloat16):
        y, region = region_of(lambda x: x.tanh(), x)
        grad(y, x, torch.ones(3), retain_graph=True)
    grad(y, x, torch.ones(3))
    assert_same(region, 1)
    assert [key.ambient for key in held_by_native(region)] == [ambient(seen)]
