"""The one check against eager.

    check:   (step, *inputs, compiler) -> Report       AssertionError on any difference
    compare: (step, *inputs, compiler) -> Report

A step is written once and run twice, from the same seeds on fresh inputs: ``compile`` returns its argument, and then
the compiler's version of it. An input is a function without arguments that makes it: ``leaf(3, 4)``, ``nn.ReLU``.

    def step(compile, x, w):
        f = compile(lambda x, w: torch.tanh(x @ w))
        y = f(x, w)
        y.sum().backward()
        return y

    check(step, leaf(3, 4), leaf(4, 4))

What is compared is listed in tests.observe: results, inputs, gradients, Nones, dtypes, strides, mutations, aliasing,
errors and generator state. To compare anything else (the order of hooks, say), put it in a list and return the list.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch

from gradc.torch_private.modes import close_autocast
from tests.compilers import EAGER, GRADC, Compiler
from tests.observe import AUTOCASTS, Observation, differences, observe, versions_of

NOT_CAPTURED = "compiled autograd: "  # such a backward runs in torch's engine: eager itself
VERSION_OF_GRADIENT = re.compile(r"^\S*\.grad: version is")
Step = Callable[..., Any]
Maker = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Report:
    """How a compiled run of a step compares with eager.

    Attributes:
        differences: what differs, one sentence each; empty if nothing does.
        fallbacks: what gradc ran eagerly: reason -> how often.
        num_graphs: how many graphs Dynamo captured.
    """

    step: str
    compiler: str
    differences: tuple[str, ...]
    fallbacks: dict[str, int]
    num_graphs: int
    eager: Observation
    compiled: Observation

    def __str__(self) -> str:
        lines = [f"{self.step} under {self.compiler}: {len(self.differences)} differences from eager"]
        lines += [f"  {difference}" for difference in self.differences]
        if self.fallbacks:
            lines.append(f"  fallbacks: {self.fallbacks}")
        return "\n".join(lines)


def check(
    step: Step,
    *inputs: Maker,
    compiler: Compiler = GRADC,
    compare_messages: bool = False,
    allow_fallback: bool = False,
    compare_counters: bool = True,
) -> Report:
    """Assert that ``step`` does the same compiled as in eager.

    Arguments:
        step: (compile, *inputs) -> anything.
        inputs: functions that make the inputs.
        compare_messages: errors must have the same words, not only the same class.
        allow_fallback: gradc may run parts eagerly; if False (default) that fails too.
        compare_counters: the version counters of ``.grad``, too. Not eager's are the tests that say False: each says why.

    Raises:
        AssertionError: with every difference.
    """
    report = compare(step, *inputs, compiler=compiler, compare_messages=compare_messages, compare_counters=compare_counters)
    assert not report.differences, str(report)
    unforeseen = [reason for reason in report.fallbacks if not reason.startswith(NOT_CAPTURED)]
    if not allow_fallback:
        assert not unforeseen, f"{report.step}: runs eagerly in part: {report.fallbacks}"
    return report


def compare(
    step: Step,
    *inputs: Maker,
    compiler: Compiler = GRADC,
    compare_messages: bool = False,
    compare_counters: bool = True,
) -> Report:
    """Run ``step`` eagerly and under ``compiler``; say what differs."""
    return compare_runs([(step, inputs)], compiler, compare_messages, compare_counters)


def compare_runs(
    runs: Sequence[tuple[Step, tuple[Maker, ...]]],
    compiler: Compiler = GRADC,
    compare_messages: bool = False,
    compare_counters: bool = True,
) -> Report:
    """Run steps one after the other, eagerly and under ``compiler``, which keeps what it compiled until the last."""
    eager = [run(step, inputs, EAGER) for step, inputs in runs]
    compiler.reset()
    found: list[str] = []
    try:
        for _ in range(compiler.num_runs):
            for (step, inputs), expected in zip(runs, eager):
                with compiler.backward():
                    compiled = run(step, inputs, compiler)
                found += differences(expected, compiled, is_bitwise=compiler.is_bitwise, are_messages_compared=compare_messages)
        if not compare_counters:
            found = [each for each in found if not VERSION_OF_GRADIENT.search(each)]
        fallbacks, num_graphs = compiler.fallbacks(), compiler.num_graphs()
    finally:
        compiler.reset()
    name = getattr(runs[0][0], "__name__", "step")
    return Report(name, compiler.name, tuple(found), fallbacks, num_graphs, eager[0], compiled)


def run(step: Step, makers: tuple[Maker, ...], compiler: Compiler, seed: int = 0) -> Observation:
    """One run of ``step`` from fixed seeds, observed."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    _reset_modes()
    inputs = tuple(make() for make in makers)
    versions = versions_of(inputs)
    with warnings.catch_warnings(record=True) as warned, always_warning():
        warnings.simplefilter("always")
        try:
            result, error = step(compiler, *inputs), None
        except Exception as raised:
            result, error = None, raised
    return observe(inputs, versions, result, error, warned)


@contextlib.contextmanager
def always_warning() -> Iterator[None]:
    """Also what torch's C++ says once in a process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(before)


def _reset_modes() -> None:
    """torch's defaults, so that what one run leaves behind does not change the next."""
    close_autocast(0)
    torch.clear_autocast_cache()
    for device, dtype in zip(AUTOCASTS, (torch.bfloat16, torch.float16)):
        torch.set_autocast_enabled(device, False)
        torch.set_autocast_dtype(device, dtype)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)


def leaf(*shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = True) -> Maker:
    """Makes a random leaf that requires a gradient."""
    return lambda: torch.randn(shape, dtype=dtype).requires_grad_(requires_grad)


def constant(*shape: int, dtype: torch.dtype = torch.float32) -> Maker:
    """Makes a random tensor that does not require a gradient."""
    return leaf(*shape, dtype=dtype, requires_grad=False)


def indices(*shape: int, high: int) -> Maker:
    """Makes random int64 numbers below ``high``."""
    return lambda: torch.randint(high, shape)
