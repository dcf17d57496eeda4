"""Tensors on "meta" have a layout and no memory: what gradc makes of them is laid out as eager's."""

from __future__ import annotations

import pytest
import torch

from tests.compilers import GRADC
from tests.devices.outcomes import faults, on
from tests.devices.registry import load
from tests.oracle import check

PROGRAMS = load()
META = torch.device("meta")
NAMES = (
    "one_op", "mlp", "convolutions", "language_model", "gradients_add_up", "twice_through_one_graph", "higher_order",
    "some_gradients", "several_sizes", "views_and_mutations", "buffers_written", "made_inside", "complex_numbers",
    "double_precision", "dropout", "autocast_of_the_host", "hooks", "checkpoint_around", "adamw", "data_parallel_buckets",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_as_eager(name: str) -> None:
    assert faults(PROGRAMS[name], on(META, f"gradc:{name}")) == []


def test_a_value_that_is_not_there() -> None:
    """``item`` of such a tensor raises, as in eager."""
    outcome = on(META, "gradc:value_decides")
    assert outcome.error and outcome.differences == ()


def test_one_function_on_the_host_and_on_meta() -> None:
    def step(compile):
        f = compile(lambda x: (x.sin() @ x).sum())
        leaves = [torch.ones(3, 3, device=place, requires_grad=True) for place in ("cpu", "meta", "cpu")]
        for leaf in leaves:
            f(leaf).backward()
        return leaves

    # Eager counts the sum of two gradients on the host, and not on meta; gradc on both.
    check(step, compiler=GRADC, compare_counters=False)
