"""Whether torch behaves as gradc expects: small programs, compiled and captured, compared with eager.

    what_is_otherwise: backend -> a line for each program that torch treats in another way, "" if there is none

For a torch that was not tested with thousands of programs already: it takes about a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradc.bits import same_bits
from gradc.compiled_autograd import enable
from gradc.journal import counters
from gradc.probes import PROBES
from gradc.torch_private.autograd import is_view

Program = Callable[[Tensor, Tensor], Any]


def what_is_otherwise(backend: Callable[..., Any]) -> str:
    """Runs in a thread of its own, where no mode of the user's is on. Counters stay as they are."""
    before = {group: names.copy() for group, names in counters.items()}
    lines: list[str] = []
    thread = threading.Thread(target=lambda: lines.extend(_lines(backend)))
    thread.start()
    thread.join()
    counters.clear()
    counters.update(before)
    return "\n".join(lines)


def _lines(backend: Callable[..., Any]) -> list[str]:
    found = {name: _differs(program, backend) for name, program in PROBES.items()}
    return [f"  {name}: {difference}" for name, difference in found.items() if difference]


def _differs(program: Program, backend: Callable[..., Any]) -> str:
    """How a program comes out otherwise than in eager; "" if it does not."""
    try:
        compiled = torch.compile(program, backend=backend, fullgraph=True, dynamic=False)
        eager = _run(program)
        with enable(backend):  # whose fullgraph=True makes errors of fallbacks, here and there
            captured = _run(program)
        return _compare(eager, _run(compiled), "compiled") or _compare(eager, captured, "captured")
    except Exception as error:  # whatever another torch raises
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"


def _run(program: Program) -> list[Tensor]:
    """What it returns, and the gradients of its arguments."""
    numbers = torch.linspace(-1, 1, 15, dtype=torch.float32, device="cpu")
    x, w = numbers[:6].view(2, 3).detach().requires_grad_(), numbers[6:].view(3, 3).detach().requires_grad_()
    out = program(x, w)
    outs = list(out) if isinstance(out, tuple | list) else [out]
    sum((part.float() * part.detach().float().sin()).sum() for part in outs).backward()
    return [*outs, *(grad for grad in (x.grad, w.grad) if grad is not None)]


def _compare(eager: list[Tensor], found: list[Tensor], how: str) -> str:
    if len(eager) != len(found):
        return f"{how}, there are {len(found)} results and gradients, not {len(eager)}"
    for number, (a, b) in enumerate(zip(eager, found)):
        if not same_bits(a, b):
            return f"{how}, value {number} has not the bits of eager's"
        if _traits(a) != _traits(b):
            return f"{how}, value {number} has {_traits(b)}; eager's has {_traits(a)}"
    return ""


def _traits(value: Tensor) -> str:
    return f"strides {value.stride()}, a gradient: {value.requires_grad}, a view: {is_view(value)}"
