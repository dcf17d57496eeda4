"""A dictionary that compiled code writes into keeps the order of its keys, as Python's does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.oracle import check, constant

GROUPS: list[dict[str, float]] = []


def decay(x: torch.Tensor) -> torch.Tensor:
    GROUPS[0]["rate"] = GROUPS[0]["rate"] * 0.9
    return x * 2


def forget(x: torch.Tensor) -> torch.Tensor:
    GROUPS[0].pop("old", None)
    GROUPS[0]["new"] = 3.0
    return x * 2


@pytest.mark.parametrize("write", [decay, forget])
def test_a_dictionary_in_another_order_than_the_first_keeps_it(write: Any) -> None:
    """As parameter groups do after ``load_state_dict``: compiled code gave them the order of its first call."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        run, seen = compile(write), []
        for keys in (("rate", "old", "decay"), ("decay", "old", "rate"), ("old", "rate", "decay"), ("rate", "old", "decay")):
            GROUPS[:] = [dict.fromkeys(keys, 2.0)]
            run(x)
            seen.append(list(GROUPS[0].items()))
        return seen

    check(step, constant(3))
