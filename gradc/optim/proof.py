"""Prove on this machine that a formula has the bits of torch's own step, before it is used for the first time.

    is_proven: (..., formula, run, settings, card, dtype) -> bool

Kernels round otherwise from machine to machine: with or without fused multiply-adds, and in the last elements of a tensor. So
both are run on tensors of many sizes, beside a few numbers that are easily mistreated, and compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradc.bits import same_bits
from gradc.journal import log
from gradc.optim.cards import Card
from gradc.optim.formulas import Formula, Settings
from gradc.policy.budget import paid

SIZES = (0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 127, 1023, 1025, 70001)
_SPECIAL = (0.0, -0.0, 1e-40, -1e-40, 1e30, -1e30, 1.0, float("inf"), float("nan"))
_NOT_NEGATIVE = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "state_sum", "acc_delta", "exp_inf")
_known: dict[tuple[Formula, torch.dtype, str], bool] = {}


def is_proven(
    columns: tuple[str, ...],
    original: Callable[..., None],
    formula: Formula,
    run: Callable[..., None],
    settings: Settings,
    card: Card | None,
    dtype: torch.dtype,
) -> bool:
    """True if ``run`` does to tensors of ``dtype`` what ``original`` does, bit for bit. Tried once for each formula.

    The draws come from a generator of their own. Two steps are taken, so that the state of the first goes into the second, and
    long ones: in a small step last bits get lost.
    """
    key = (formula, dtype, card.name if card else "")
    if key not in _known:
        try:
            with paid():
                tensors = _tensors(columns, formula, card, dtype)
                _known[key] = _is_same(columns, original, formula, run, {**settings, "lr": 1.0}, tensors)
        except RuntimeError as error:  # a device that is out of memory, or does not start the kernel: torch's own step goes on
            log("fallbacks", f"an optimizer's kernel could not be tried: {error}")
            _known[key] = False
    return _known[key]


def _is_same(
    columns: tuple[str, ...],
    original: Callable[..., None],
    formula: Formula,
    run: Callable[..., None],
    settings: Settings,
    theirs: dict[str, list[Any]],
) -> bool:
    ours = {name: [None if value is None else value.clone() for value in column] for name, column in theirs.items()}
    for _ in range(1 if formula.made else 2):
        original(*(theirs[name] for name in columns), **settings)
        run(formula, ours, settings)
    return all(same_bits(a, b) for name in columns for a, b in zip(ours[name], theirs[name], strict=True))


def _tensors(columns: tuple[str, ...], formula: Formula, card: Card | None, dtype: torch.dtype) -> dict[str, list[Any]]:
    """Random tensors of all sizes for each argument of the function. State is not negative, where torch's is not either.

    What the formula makes is not there.
    """
    generator = torch.Generator().manual_seed(0)

    def tensor(size: int, name: str) -> torch.Tensor | None:
        if name in formula.made:
            return None
        if name == "step":
            return torch.tensor(float(formula.first_step + size % 3))
        if name == "mu_product":
            return torch.tensor(0.5 / (1 + size % 4))
        values = torch.randn(size, generator=generator, dtype=torch.float64)
        values[: len(_SPECIAL)] += torch.tensor(_SPECIAL[:size], dtype=torch.float64) if size > 64 else 0
        values = values.abs() if name in _NOT_NEGATIVE else values
        return values.to(dtype).to(card.device if card else "cpu")

    return {name: [tensor(size, name) for size in SIZES] for name in columns}
