"""Threads that compile and call one new function at once, again and again: does the process live?

    python -m tests.compile_races [--functions N] [--threads N]

Each function is a step of nothing but ``optimizer.zero_grad()``. With threads that take turns every microsecond, Dynamo alone
dies within a minute or two: see ``gradc/torch_private/dynamo_patches/dying_guards.py``.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

import torch

import gradc

NUM_CALLS = 50


def made(optimizer: Any) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()

    return step


def renewed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with code that Dynamo has not seen, and so has what it makes."""
    constants = tuple(value.replace() if isinstance(value, types.CodeType) else value for value in function.__code__.co_consts)
    return types.FunctionType(function.__code__.replace(co_consts=constants), function.__globals__)


def work(made: Callable[[Any], Callable[[], None]], failures: list[BaseException]) -> None:
    try:
        params = [torch.nn.Parameter(torch.randn(2)) for _ in range(3)]
        clear = gradc.compile(made(torch.optim.SGD(params, lr=0.1)), options={"compare_with_eager": False})
        for _ in range(NUM_CALLS):
            params[2].grad = torch.ones(2)
            clear()
            assert params[2].grad is None
    except BaseException as error:
        failures.append(error)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile new functions in several threads at once.")
    parser.add_argument("--functions", type=int, default=400, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=4, help="default: %(default)s")
    options = parser.parse_args()
    faulthandler.enable()
    sys.setswitchinterval(1e-6)
    failures: list[BaseException] = []
    for _ in range(options.functions):
        made_anew = renewed(made)
        threads = [threading.Thread(target=work, args=(made_anew, failures)) for _ in range(options.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(f"{options.functions} functions, {len(failures)} failures")
    for failure in failures[:3]:
        traceback.print_exception(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
