"""A boundary that does another thing than when it was recorded: the engine goes on from the state after it."""

from __future__ import annotations

from typing import Any

import pytest

import gradc
from gradc import native
from tests.capture.steps import Step, check, grads, leaf

pytestmark = pytest.mark.skipif(not native.is_built(), reason="the extension was not built")


@pytest.mark.parametrize("number", range(5))
def test_after_any_of_several_boundaries(number: int) -> None:
    """All nodes that ran before have to be known, and not those alone that ran since the boundary before."""

    def make() -> Step:
        x, weights = leaf(2, 3), [leaf(2, 3, seed=seed) for seed in range(5)]

        def step(i: int) -> Any:
            by_columns = lambda grad: grad.t().contiguous().t()
            hidden = x
            for position, weight in enumerate(weights):
                hidden = (hidden * weight).sin() + x
                hidden.register_hook(by_columns if i == 2 and position == number else lambda grad: grad * 2)
            hidden.square().sum().backward()
            return grads(x, *weights)

        return step

    check(make, captures=None)
    assert gradc.counters["compiled_autograd"]["finished live"] == 1
