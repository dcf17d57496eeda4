"""Check parity: run a step eagerly and compiled from the same state, and compare tensor by tensor.

    check: (step, arguments) -> Report

What is compared, bit for bit: the results; the gradients of every parameter and tensor argument, Nones and dtypes
included; what the step left in parameters, buffers and tensor arguments; and the state of the random generator.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradc.backends import DEFAULT_BACKEND
from gradc.bits import same_bits
from gradc.errors import CheckError, ConfigError
from gradc.frontend.api import compile
from gradc.text_table import table

SEED = 0


@dataclasses.dataclass(frozen=True)
class Difference:
    """One value that is not eager's: its name ("grad of weight"), and both sides in words."""

    name: str
    eager: str
    compiled: str
    largest: float | None


@dataclasses.dataclass(frozen=True)
class Report:
    """What ``gradc.check`` found. ``str`` of it is a table.

    Attributes:
        num_compared: how many values were compared.
        differences: those that are not eager's, bit for bit.
    """

    num_compared: int
    differences: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        if self.ok:
            return f"{self.num_compared} values compared: all are eager's, bit for bit."
        rows = [
            [d.name, d.eager, d.compiled, "-" if d.largest is None else f"{d.largest:.1e}"] for d in self.differences
        ]
        head = f"{self.num_compared} values compared: {len(rows)} are not eager's."
        return f"{head}\n{table(['value', 'eager', 'compiled', 'largest difference'], rows)}"

    def raise_if_different(self) -> None:
        """Raises:
        CheckError: with the table, if any value is not eager's.
        """
        if not self.ok:
            raise CheckError(str(self))


def check(step: Callable[..., Any], *args: Any, backend: str | None = None) -> Report:
    """Run ``step(*args)`` eagerly and compiled, each on copies and from the same seed, and compare bit for bit.

    If a result that requires grad is left over (``step`` did not call backward), its sum is differentiated.

    Arguments:
        step: a function or a module. Modules among ``args``, and tensors, are copied; what a function closes over
            cannot be, so a step that trains a captured model should build it inside, or take it as an argument.
        backend: of ``gradc.compile``; None: its default.

    Returns:
        A Report: ``.ok``, ``str()``, ``.raise_if_different()``.

    Raises:
        ConfigError: if an argument cannot be copied.
    """
    target, inputs = copies(step, args)
    compiled_target, compiled_inputs = copies(step, args)
    expected = _observe(target, target, inputs)
    actual = _observe(compile(compiled_target, backend=backend or DEFAULT_BACKEND), compiled_target, compiled_inputs)
    names = list(dict.fromkeys([*expected, *actual]))
    found = (_compare(name, expected.get(name), actual.get(name)) for name in names)
    return Report(len(names), tuple(difference for difference in found if difference is not None))


def copies(step: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Fresh leaves for tensors, deep copies of everything else, with what they share still shared."""
    memo: dict[int, Any] = {}
    for leaf in pytree.tree_leaves(args):
        if isinstance(leaf, Tensor) and not leaf.is_leaf:
            memo[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
    try:
        return (copy.deepcopy(step, memo) if isinstance(step, nn.Module) else step), copy.deepcopy(args, memo)
    except (TypeError, RuntimeError) as error:
        raise ConfigError(f"gradc.check copies its arguments for each run, but cannot copy one: {error}") from error


def _observe(run: Callable[..., Any], step: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """Run once from the fixed seed -> every value that a user could look at afterwards, by name."""
    holders = [("", step)] if isinstance(step, nn.Module) else []
    holders += [(f"args[{i}]", value) for i, value in enumerate(args)]

    def held() -> dict[str, Any]:
        return {label: value for name, holder in holders for label, value in _named(name, holder)}

    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        result = run(*args)
        seen = dict(_named("result", result))
        differentiate(result, [value for value in held().values() if _is_trained(value)])
        seen["random generator"] = torch.random.get_rng_state()
    for label, value in held().items():
        seen[label] = value
        if _is_trained(value):
            seen[f"grad of {label}"] = value.grad
    return {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in seen.items()}


def _is_trained(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_leaf and value.requires_grad


def differentiate(result: Any, leaves: Sequence[Any] = ()) -> None:
    """Backward, with gradients of ones, from every result that still has a graph.

    A step that ran backward itself may return its loss: the graph is then spent, and ``leaves`` keep their gradients.
    """
    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
    live = [output for output in outputs if output.grad_fn is not None and output.dtype.is_floating_point]
    kept = [(leaf, leaf.grad.clone() if leaf.grad is not None else None) for leaf in leaves]
    try:
        if live:
            torch.autograd.backward(live, [torch.ones_like(output) for output in live])
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        for leaf, grad in kept:
            leaf.grad = grad


def _named(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors, and other leaves, of an argument or a result, each with a name for the report."""
    if isinstance(value, nn.Module):
        prefix = f"{name}." if name else ""
        yield from ((prefix + key, parameter) for key, parameter in value.named_parameters())
        yield from ((prefix + key, buffer) for key, buffer in value.named_buffers())
        return
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        if isinstance(leaf, nn.Module) and path:
            yield from _named(name + pytree.keystr(path), leaf)
        elif leaf is None or isinstance(leaf, Tensor | int | float | str | bool):
            yield name + pytree.keystr(path), leaf


def _compare(name: str, eager: Any, compiled: Any) -> Difference | None:
    if same_bits(eager, compiled):
        return None
    return Difference(name, _describe(eager), _describe(compiled), _largest(eager, compiled))


def _largest(eager: Any, compiled: Any) -> float | None:
    """None where there is nothing to subtract."""
    if not isinstance(eager, Tensor) or not isinstance(compiled, Tensor):
        return None
    if eager.dtype != compiled.dtype or eager.shape != compiled.shape or eager.layout != compiled.layout:
        return None
    wide = torch.complex128 if eager.is_complex() else torch.float64
    return (eager.to_dense().to(wide) - compiled.to_dense().to(wide)).abs().max().item()


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)
