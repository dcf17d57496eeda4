"""The numbers of a formula, computed in C++, are the ones that Python computes: each bit, and none where Python has none."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from gradc import native
from gradc.optim.arithmetic import written_down
from gradc.optim.rules import RULES

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))

GATHERED = [name for name, rule in RULES.items() if rule.is_gathered]
FLAGS = ("amsgrad", "maximize", "decoupled_weight_decay", "nesterov", "centered")
ODD: tuple[Any, ...] = (0, 1, -1, 2, 0.5, 1.0, 0.0, -0.25, 1e-8, 1e308, 2**60, True)
COUNTS = (1.0, 2.0, 3.0, 17.0, 1000.0, 123457.0, 16777216.0)


def settings_of(name: str, rng: random.Random) -> dict[str, Any]:
    def number() -> Any:
        return rng.choice((*ODD, *(rng.random() for _ in ODD), *(1 - rng.random() / 1000 for _ in ODD)))

    return {setting: number() for setting in RULES[name].numbers} | {flag: rng.random() < 0.5 for flag in FLAGS}


def by_python(formula: Any, settings: dict[str, Any], lr: float, step: float) -> list[float] | None:
    try:
        return [float(number) for number in formula.numbers({**settings, "lr": lr}, step)]
    except (ArithmeticError, TypeError, ValueError):
        return None


@pytest.mark.parametrize("name", GATHERED)
def test_as_python(name: str) -> None:
    rng, num_computed = random.Random(name), 0
    for _ in range(400):
        settings = settings_of(name, rng)
        try:
            formula = RULES[name].formula(settings, False)
        except TypeError:
            continue
        arithmetic = written_down(lambda lr, step: formula.numbers({**settings, "lr": lr}, step))
        for lr, step in itertools.product((0.1, 1e-3, rng.random(), -0.5, 1e300), COUNTS):
            found = arithmetic and native.extension.compute(arithmetic, lr, step)
            if found:
                expected = by_python(formula, settings, lr, step)
                assert expected is not None and list(map(float.hex, found)) == list(map(float.hex, expected)), (
                    settings,
                    lr,
                    step,
                )
                num_computed += 1
    assert num_computed > 1000


@pytest.mark.parametrize(
    ("numbers", "lr", "step"),
    [
        (lambda lr, step: [1 / (step - 3)], 0.1, 3.0),
        (lambda lr, step: [(step - 5) ** 0.5], 0.1, 3.0),
        (lambda lr, step: [(step - 3) ** -1], 0.1, 3.0),
        (lambda lr, step: [10.0**step], 0.1, 400.0),
        (lambda lr, step: [lr * 1e300], 1e300, 1.0),
    ],
    ids=["division by 0", "a complex number", "a power of 0", "too large a power", "infinite"],
)
def test_what_python_has_to_say_is_left_to_it(numbers: Any, lr: float, step: float) -> None:
    arithmetic = written_down(numbers)
    assert arithmetic and native.extension.compute(arithmetic, lr, step) is None


@pytest.mark.parametrize(
    "numbers",
    [
        lambda lr, step: [max(lr, 0.1)],
        lambda lr, step: [lr == 0.1],
        lambda lr, step: [abs(lr)],
        lambda lr, step: [lr if step else 1],
        lambda lr, step: [lr + 2**60],
    ],
    ids=["greater", "equal", "another function", "a branch", "an integer that is no double"],
)
def test_what_is_no_arithmetic_is_not_written_down(numbers: Any) -> None:
    assert written_down(numbers) is None
