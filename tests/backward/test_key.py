"""The key of a backward: what it tells apart, what it says of itself, and how a miss is explained."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import pytest
import torch

import gradc
from gradc.ambient import NO_AUTOCAST, AutocastState, ambient
from gradc.backward.key import BackwardKey, closest, differences, key_of
from gradc.errors import UnsupportedError
from gradc.frontend.dynamo import compile_region
from gradc.ir.values import TensorMeta
from gradc.journal import listening
from gradc.region.region import Region
from tests.oracle import leaf

grad = torch.autograd.grad


def meta(*shape: int, stride: tuple[int, ...] | None = None) -> TensorMeta:
    return TensorMeta(torch.float32, shape, stride or torch.empty(shape).stride(), 0, torch.device("cpu"))


KEY = BackwardKey(ambient(NO_AUTOCAST), (meta(3), None), (True, False, True))
BFLOAT16 = AutocastState((("cpu", torch.bfloat16),))


def test_it_prints_itself_in_words():
    text = str(KEY)
    assert text.startswith("autocast: off, is_deterministic: no, matmul_precision: highest")
    assert text.endswith(
        "gradient 0: f32[3][1]cpu, gradient 1: undefined, needed gradients: 0 2 of 3, "
        "adding up here: no, gradients that sums are written over: none"
    )
    assert "autocast: cpu torch.bfloat16" in str(dataclasses.replace(KEY, ambient=ambient(BFLOAT16)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ambient": ambient(BFLOAT16)}, "autocast was off, is cpu torch.bfloat16"),
        ({"tangents": (meta(4), None)}, "gradient 0 was f32[3][1]cpu, is f32[4][1]cpu"),
        ({"tangents": (meta(3, stride=(2,)), None)}, "gradient 0 was f32[3][1]cpu, is f32[3][2]cpu"),
        ({"tangents": (meta(3), meta(2))}, "gradient 1 was undefined, is f32[2][1]cpu"),
        ({"tangents": (meta(3), None, meta(2))}, "gradient 2 was not there, is f32[2][1]cpu"),
        ({"needed": (True, True, True)}, "needed gradients was 0 2 of 3, is 0 1 2 of 3"),
        ({"needed": (False, False, False)}, "needed gradients was 0 2 of 3, is none of 3"),
        ({"adds_up": True}, "adding up here was no, is yes"),
        ({"stealable": (0,)}, "gradients that sums are written over was none, is 0"),
    ],
)
def test_each_part_is_told_apart_and_said(change: dict[str, Any], said: str):
    other = dataclasses.replace(KEY, **change)
    assert other != KEY
    assert differences(KEY, other) == [said]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(KEY.ambient)])
def test_each_mode_is_a_part(name: str):
    other = dataclasses.replace(KEY, ambient=dataclasses.replace(KEY.ambient, **{name: "another"}))
    (said,) = differences(KEY, other)
    assert other != KEY and said.startswith(f"{name} was ") and said.endswith(", is another")


def test_the_closest_of_earlier_keys():
    far = dataclasses.replace(KEY, tangents=(meta(7), meta(7)), needed=(True, True, True))
    near = dataclasses.replace(KEY, tangents=(meta(7), None))
    found, said = closest([far, near, far], KEY)
    assert found is near and said == ["gradient 0 was f32[7][1]cpu, is f32[3][1]cpu"]


def region_of(function: Any, *inputs: torch.Tensor, **options: Any) -> tuple[Any, Region]:
    """The outputs of the compiled function, and its region."""
    regions: list[Region] = []

    def noted(*arguments: Any) -> Region:
        regions.append(compile_region(*arguments))
        return regions[-1]

    with mock.patch("gradc.frontend.dynamo.compile_region", noted):
        outputs = gradc.compile(function, **options)(*inputs)
    return outputs, regions[0]


def test_it_is_read_off_a_call_in_the_present_state():
    x = leaf(2, 3)()
    _, region = region_of(lambda x: x.sin(), x)
    (segment,) = region.segments
    tangent = torch.ones(3, 2).t()
    key = key_of(segment, [tangent], [True], [0])
    assert (key.tangents, key.needed, key.stealable) == ((meta(2, 3, stride=(1, 2)),), (True,), (0,))
    assert key.ambient == ambient(NO_AUTOCAST)
    with torch.autocast("cpu", torch.bfloat16):
        assert key_of(segment, [tangent], [True]).ambient == ambient(BFLOAT16)


def test_with_symbolic_sizes_it_holds_for_all_sizes():
    _, region = region_of(lambda x: x.sin(), leaf(2, 3)(), dynamic=True)
    (segment,) = region.segments
    keys = [key_of(segment, [torch.ones(size)], [True]) for size in [(2, 3), (5, 7)]]
    assert keys[0] == keys[1] and hash(keys[0]) == hash(keys[1])
    assert keys[0] != key_of(segment, [torch.ones(7, 5).t()], [True])


@pytest.mark.parametrize(
    ("tangent", "reason"),
    [
        (torch.ones(3).to_sparse(), "gradient that is not strided"),
        (torch._efficientzerotensor(3), "gradient that is a lazy zero"),
        (torch.ones(3).as_subclass(type("Own", (torch.Tensor,), {})), "gradient of a tensor subclass: Own"),
    ],
)
def test_gradients_that_no_program_takes(tangent: torch.Tensor, reason: str):
    _, region = region_of(lambda x: x.sin(), leaf(3)())
    with pytest.raises(UnsupportedError, match=reason):
        key_of(region.segments[0], [tangent], [True])


def test_a_miss_names_the_closest_key_before_and_the_difference():
    x = leaf(4, 4)()
    y = gradc.compile(lambda x: x.sin())(x)
    with listening() as events:
        grad(y, x, torch.ones(4, 4), retain_graph=True)
        grad(y, x, torch.ones(()).expand(4, 4), retain_graph=True)
        with torch.autocast("cpu", torch.bfloat16):
            grad(y, x, torch.ones(4, 4), retain_graph=True)
    said = [str(text).splitlines() for artifact, text in events if artifact == "recompiles"]
    assert [lines[0].split(": ", 1)[1] for lines in said] == [
        "gradient 0 was f32[4, 4][4, 1]cpu, is f32[4, 4][0, 0]cpu",
        "autocast was off, is cpu torch.bfloat16",
    ]
    assert said[1][1].startswith("  closest of 2 before: autocast: off, ") and "gradient 0: f32[4, 4][4, 1]cpu" in said[1][1]
