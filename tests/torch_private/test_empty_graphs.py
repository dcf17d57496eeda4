"""A call that makes no op of torch's: the function stays compiled for those that do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.oracle import check, leaf


def test_a_call_that_returns_at_once_leaves_the_function_compiled() -> None:
    """Dynamo skipped the function from then on, and nobody was told."""

    def step(compile: Any, x: Tensor) -> Any:
        def f(x: Tensor) -> Tensor:
            return (x / 3).sin() if x.requires_grad else x

        call = compile(f)
        results = [call(x), call(x.detach())]
        with torch.autocast("cpu", torch.bfloat16):
            return *results, call(x), call(x.detach())

    assert check(step, leaf(3)).num_graphs == 4


def test_a_function_whose_very_first_call_makes_no_op_is_compiled_for_the_calls_that_do() -> None:
    """Dynamo skipped the function from then on, and nobody was told."""

    def step(compile: Any, x: Tensor) -> Any:
        call = compile(lambda x, go: x.sin() if go else None)
        return [call(x, go) for go in (False, True, False, True, False)]

    assert check(step, leaf(3)).num_graphs == 1


def test_a_call_that_makes_no_op_has_its_effects_once() -> None:
    def step(compile: Any, x: Tensor) -> Any:
        seen: list[str] = []

        def note(what: str) -> None:
            seen.append(what)

        def f(x: Tensor, go: bool) -> Any:
            note("called")
            return x.sin() if go else len(seen)

        call = compile(f)
        return [call(x, go) for go in (False, False, True, False, True)], seen

    assert check(step, leaf(3)).num_graphs > 0
