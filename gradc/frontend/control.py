"""Leaving a function out, and starting over.

disable: function -> function      reset: () -> None
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradc import compiled_autograd, native
from gradc.backends import auto
from gradc.journal import counters
from gradc.optim import forget_modules
from gradc.policy.budget import refill_budgets
from gradc.policy.profitability import forget_verdicts


def disable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run ``function`` eagerly even where a compiled function calls it: the graph ends there, and begins anew behind it.

    Arguments:
        function: a function or a module; also usable as a decorator.

    Returns:
        What is to be called in its place. The same as ``torch.compiler.disable``, for other compilers, too.
    """
    return torch.compiler.disable(function)


def reset() -> None:
    """Forget every compiled region, every captured backward, what was found slower than eager, and every count.

    What is compiled stays usable, and is compiled again at its next call; code compiled by ``torch.compile`` for other backends
    is forgotten as well (``torch.compiler.reset``). Memory that is kept for the next step goes back. Settings, registered
    backends and patches of torch stay as they are.
    """
    torch.compiler.reset()
    compiled_autograd.reset()
    refill_budgets()
    forget_verdicts()
    forget_modules()
    auto.forget()
    native.release_memory()
    counters.clear()
