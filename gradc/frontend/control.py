"""Leaving a function out, and starting over.

disable: function -> function      reset: () -> None
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradc import compiled_autograd
from gradc.frontend.budget import refill_budgets
from gradc.frontend.pays import forget_verdicts
from gradc.journal import counters


def disable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run ``function`` eagerly even where a compiled function calls it."""
    return torch.compiler.disable(function)


def reset() -> None:
    """Forget every compiled region, every captured backward and every count."""
    torch.compiler.reset()
    compiled_autograd.reset()
    refill_budgets()
    forget_verdicts()
    counters.clear()
