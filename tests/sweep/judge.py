"""One sample under one compiler: does it give eager's bits?

    judge: (Subject name, Sample, Compiler, order) -> one Verdict for each ambient state of backward

The states are "plain" (no autocast at all) and "bf16" (only backward runs under bf16 autocast, of the outputs' device).
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.compilers import DYNAMO, EAGER, Compiler
from tests.observe import Observation, differences
from tests.oracle import run
from tests.sweep.suites import UNINITIALISED, Sample

STATES = ("plain", "bf16")
TIMEOUT_SECONDS = 60
NUM_REPEATS = 3  # of eager, before a difference counts: on a GPU, sums in no fixed order are often equal all the same

# The statuses, best first; the words are the column heads of docs/sweep.md.
STATUSES = (
    "bitwise",
    "both raise",
    "eagerly",  # bitwise, with counted fallbacks
    "not captured",  # bitwise, but Dynamo made no graph
    "uninitialised",
    "not reproducible",  # two eager runs differ
    "dynamo",  # Dynamo's own backend="eager" differs or raises, too
    "mismatch",
    "raises",
    "timeout",
    "crash",
    "skipped",
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of one sample in one state. ``detail``: the first difference, or the reason."""

    name: str
    sample: int
    state: str
    status: str
    detail: str = ""


class _Timeout(BaseException):
    pass


def judge(name: str, number: int, sample: Sample, compiler: Compiler, order: int) -> list[Verdict]:
    """Compare one sample with eager, in each state."""
    step = _step(sample, order)
    eager = run(step, (sample.fresh,), EAGER)
    try:
        with time_limit():
            compiled, fallbacks, num_graphs = _run_fresh(step, sample, compiler, eager)
    except _Timeout:
        return [Verdict(name, number, state, "timeout") for state in STATES]
    verdicts = []
    for state in STATES:
        status, detail = _status(name, step, sample, state, eager, compiled, compiler)
        if status == "bitwise" and fallbacks:
            status, detail = "eagerly", ", ".join(fallbacks)
        elif status == "bitwise" and not num_graphs:
            status = "not captured"
        verdicts.append(Verdict(name, number, state, status, detail))
    return verdicts


def _status(
    name: str, step: Any, sample: Sample, state: str, eager: Observation, compiled: Observation, compiler: Compiler
) -> tuple[str, str]:
    found = _differences_in(state, eager, compiled, compiler.is_bitwise)
    if not found:
        return ("both raise", str(_error_in(state, eager))) if _error_in(state, eager) else ("bitwise", "")
    if name.split(".")[-1] in UNINITIALISED and all(": values differ" in difference for difference in found):
        return "uninitialised", ""
    if any(_differences_in(state, eager, run(step, (sample.fresh,), EAGER)) for _ in range(NUM_REPEATS)):
        return "not reproducible", found[0]
    if compiler is not DYNAMO:
        dynamo, _, _ = _run_fresh(step, sample, DYNAMO, eager)
        if _differences_in(state, eager, dynamo):
            return "dynamo", found[0]
    raises = compiled.error is not None or _error_in(state, compiled)
    return ("raises" if raises else "mismatch"), found[0]


def _run_fresh(
    step: Any, sample: Sample, compiler: Compiler, eager: Observation
) -> tuple[Observation, dict[str, int], int]:
    """The last run, or the first that is not as ``eager``: compiled autograd captures in one, and replays in the next."""
    compiler.reset()
    for _ in range(compiler.num_runs):
        with compiler.backward():
            seen = run(step, (sample.fresh,), compiler)
        if differences(eager, seen, is_bitwise=compiler.is_bitwise):
            break
    return seen, compiler.fallbacks(), compiler.num_graphs()


def _differences_in(state: str, eager: Observation, compiled: Observation, is_bitwise: bool = True) -> list[str]:
    """The differences that concern ``state``, or no single one."""
    others = tuple(f"result['{other}']" for other in STATES if other != state)
    return [d for d in differences(eager, compiled, is_bitwise=is_bitwise) if not d.startswith(others)]


def _error_in(state: str, seen: Observation) -> Any:
    return seen.values.get(f"result['{state}']['error']")


def _step(sample: Sample, order: int) -> Any:
    def step(compile: Compiler, arguments: tuple[Any, ...]) -> Any:
        function = compile(sample.function)
        return {state: _attempt(function, sample, arguments, order, state) for state in STATES}

    return step


def _attempt(function: Any, sample: Sample, arguments: tuple[Any, ...], order: int, state: str) -> Any:
    """Outputs and gradients, or the class of the error: a difference in one state must not hide the other."""
    torch.manual_seed(1)
    outputs = gradients = None
    try:
        outputs = function(*arguments)
        gradients = _differentiate(sample.finish(outputs), arguments, order, state)
        return {"outputs": outputs, "gradients": gradients}
    except Exception as error:
        if type(error).__module__.startswith(("torch._dynamo", "gradc")):
            return {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        return {"error": type(error).__name__, "outputs": outputs}


def _differentiate(outputs: Any, arguments: Any, order: int, state: str) -> list[Any]:
    outputs = [out for out in pytree.tree_leaves(outputs) if _has_grad(out)]
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if _has_grad(leaf)]
    if not outputs or not leaves:
        return []
    generator = torch.Generator().manual_seed(2)
    gradients: list[Any] = []
    for remaining in reversed(range(order)):
        tangents = [_tangent(out, generator).requires_grad_(remaining > 0) for out in outputs]
        autocast = _autocast_of(outputs[0].device) if state == "bf16" else contextlib.nullcontext()
        with autocast:
            found = torch.autograd.grad(outputs, leaves, tangents, allow_unused=True, create_graph=remaining > 0)
        gradients.append([None if grad is None else grad.detach() for grad in found])
        outputs = [grad for grad in found if _has_grad(grad)]
        leaves += tangents
        if not outputs:
            break
    return gradients


def _autocast_of(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(device.type, torch.bfloat16)


def _tangent(out: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if out.layout is not torch.strided or out.is_nested:
        return out.detach()
    real = torch.randn(out.shape, generator=generator)
    if out.is_complex():
        real = torch.complex(real, torch.randn(out.shape, generator=generator))
    return real.to(out.device, out.dtype)


def _has_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _Timeout

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(TIMEOUT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
