"""What Python hands to C++ is checked where it is read: an unknown word, a missing field, a wrong type."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch

import gradc
from gradc import native
from gradc.region import native_layout

extension = native.extension
pytestmark = pytest.mark.skipif(extension is None, reason="the extension was not built")


@pytest.fixture
def specs(monkeypatch) -> dict[str, Any]:
    """The specs of one small region, as they were handed over."""
    seen: dict[str, Any] = {}
    make_plan, make_region = extension.Plan, extension.Region

    class Plan(make_plan):
        def __init__(self, spec: Any, *others: Any) -> None:
            seen.setdefault("plan", spec)
            super().__init__(spec, *others)

    class Region(make_region):
        def __init__(self, spec: Any) -> None:
            seen["region"] = spec
            super().__init__(spec)

    monkeypatch.setattr(extension, "Plan", Plan)
    monkeypatch.setattr(extension, "Region", Region)
    gradc.compile(lambda x, w: torch.tanh(x @ w).exp())(torch.ones(2, 3), torch.ones(3, 3, requires_grad=True))
    monkeypatch.undo()
    gradc.reset()
    return seen


def without(spec: Any, field: str) -> Any:
    return types.SimpleNamespace(**{one.name: getattr(spec, one.name) for one in dataclasses.fields(spec) if one.name != field})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("symbols", [("length", 0, 0)], r"RegionSpec\.symbols cannot be 'length'; it is one of int, size, stride"),
        ("live_order", [("leaf", 0, 0, 0)], r"RegionSpec\.live_order cannot be 'leaf'; it is one of primal, segment, output"),
        ("is_split_at_leaves", "yes", r"RegionSpec\.is_split_at_leaves cannot be 'yes'"),
        ("made", [("first", None)], r"RegionSpec\.made cannot be \('first', None\)"),
    ],
)
def test_a_region_that_says_what_is_unknown(specs, field, value, message):
    with pytest.raises(ValueError, match=message):
        extension.Region(dataclasses.replace(specs["region"], **{field: value}))


@pytest.mark.parametrize("field", [one.name for one in dataclasses.fields(native_layout.RegionSpec) if one.name != "shapes"])
def test_a_region_without_a_field(specs, field):
    with pytest.raises(ValueError, match=rf"RegionSpec\.{field} is missing"):
        extension.Region(without(specs["region"], field))


def with_another(spec: Any) -> Any:
    return types.SimpleNamespace(**vars(spec), colour="red")


def test_a_field_that_nobody_knows(specs):
    region, plan = specs["region"], specs["plan"]
    with pytest.raises(ValueError, match=r"RegionSpec\.colour is unknown"):
        extension.Region(with_another(region))
    with pytest.raises(ValueError, match=r"NativeSegment\.colour is unknown"):
        extension.Region(dataclasses.replace(region, segments=[with_another(region.segments[0])]))
    entry = with_another(region.segments[0].entries[0])
    with pytest.raises(ValueError, match=r"Entry\.colour is unknown"):
        extension.Region(dataclasses.replace(region, segments=[dataclasses.replace(region.segments[0], entries=[entry])]))
    with pytest.raises(ValueError, match=r"PlanSpec\.colour is unknown"):
        extension.Plan(with_another(plan))
    with pytest.raises(ValueError, match=r"Step\.colour is unknown"):
        extension.Plan(dataclasses.replace(plan, steps=(with_another(plan.steps[0]), *plan.steps[1:])))


def test_a_plan_that_says_what_is_unknown(specs):
    spec = specs["plan"]
    with pytest.raises(ValueError, match=r"PlanSpec\.symbols cannot be 'length'; it is one of int, size, stride"):
        extension.Plan(dataclasses.replace(spec, symbols=(("length", 0, 0),)))
    step = dataclasses.replace(spec.steps[0], operands=(("slots", 0), *spec.steps[0].operands[1:]))
    known = "constant, slot, bound, pack, default"
    with pytest.raises(ValueError, match=f"operand of a PlanSpec cannot be 'slots'; it is one of {known}"):
        extension.Plan(dataclasses.replace(spec, steps=(step, *spec.steps[1:])))
    with pytest.raises(ValueError, match=r"PlanSpec\.inputs cannot be 'all'"):
        extension.Plan(dataclasses.replace(spec, inputs="all"))
    with pytest.raises(ValueError, match=r"PlanSpec\.metas is missing"):
        extension.Plan(without(spec, "metas"))


def test_a_direct_output_of_an_unknown_kind(specs):
    region = extension.Region(specs["region"])
    known = "plain, argument, value, again, view, size"
    with pytest.raises(ValueError, match=rf"DirectOutput\.kind cannot be 'values'; it is one of {known}"):
        region.direct([("values", 0, False, None)], print, None, False, False, [], [])
    with pytest.raises(ValueError, match="DirectOutput cannot be None"):
        region.direct([None], print, None, False, False, [], [])
