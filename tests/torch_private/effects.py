"""What compiling with gradc changes for the rest of the process, a name a line: ``python -m tests.torch_private.effects``."""

from __future__ import annotations

import gc
import logging
import random
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import gradc

_PLAIN = (bool, int, float, str, type(None))


def attributes() -> Iterator[tuple[str, Any]]:
    """The functions, classes and plain values in all modules of torch; of Dynamo's, which count, the functions and classes."""
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] == "torch":
            kept = () if name.startswith("torch._dynamo") else _PLAIN
            yield from _members(name, vars(module), (types.FunctionType, types.BuiltinFunctionType, type, *kept))


def _members(owner: str, namespace: Any, kinds: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    for name, value in list(namespace.items()):
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if isinstance(value, kinds) and value == value:  # no NaN
            yield f"{owner}.{name}", value
        if isinstance(value, type) and value.__module__ == owner:
            yield from _members(f"{owner}.{name}", vars(value), kinds)


def settings() -> Iterator[tuple[str, Any]]:
    yield "warnings.filters", list(warnings.filters)
    yield "sys.getrecursionlimit()", sys.getrecursionlimit()
    yield "sys hooks", (sys.excepthook, sys.displayhook, sys.unraisablehook, sys.gettrace(), sys.getprofile())
    yield "gc", (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count(), len(gc.callbacks))
    yield "random.getstate()", random.getstate()
    yield "torch.get_rng_state()", torch.get_rng_state().tolist()
    yield "threads", (threading.active_count(), torch.get_num_threads(), torch.get_num_interop_threads())
    yield "signals", [signal.getsignal(number) for number in signal.valid_signals()]
    yield "logging", (logging.getLogger().level, list(logging.getLogger().handlers))
    yield "dtype", torch.get_default_dtype()
    yield "determinism", (torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision())


def state() -> dict[str, Any]:
    return dict([*settings(), *attributes()])


def compile_all_kinds(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x = torch.ones(2, 2, requires_grad=True)
    model = gradc.compile(model)
    for size in (2, 3, 4):
        model(torch.ones(size, 2)).sum().backward()
    with gradc.compiled_autograd.enable():
        (x * 2).sum().backward()

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    gradc.compile(step)()
    gradc.compile(lambda x: torch.distributions.Normal(x, x.exp()).log_prob(x))(x)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # the first of its class is wrapped where it is made
    torch.ones(1, requires_grad=True).sum().backward()
    before = state()
    compile_all_kinds(model, optimizer)
    after = state()
    print(*(name for name in before if name not in after or before[name] != after[name]), sep="\n")
