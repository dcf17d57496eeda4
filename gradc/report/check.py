"""Check parity: run a step eagerly and compiled from the same state, and compare tensor by tensor.

    check: (step, arguments) -> Report

What is compared, bit for bit: the results; the gradients of every parameter and tensor argument, Nones and dtypes
included; what the step left in parameters, buffers, tensor arguments, and in the models and tensors that it names; and the
state of the random generator. Eager runs twice: what is not eager's own the second time is nothing to compare with.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradc.backends import DEFAULT_BACKEND
from gradc.bits import same_bits
from gradc.errors import CheckError, ConfigError
from gradc.frontend.api import compile
from gradc.frontend.control import reset
from gradc.journal import Fallback, Graph, Uncompiled, counters, listening
from gradc.report.state import held_by, restoring
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
    """What ``gradc.check`` found. ``str`` of it is a table, and what it has to say against itself.

    Attributes:
        num_compared: how many values were compared.
        differences: those that are not eager's, bit for bit.
        irreproducible: those that eager itself did not get twice; they are no differences.
        num_compiled: how many regions and captured backward passes the compiled run had.
        left_out: what of it ran eagerly, or was in no graph.
    """

    num_compared: int
    differences: tuple[Difference, ...]
    irreproducible: tuple[Difference, ...] = ()
    num_compiled: int = 1
    left_out: tuple[Fallback | Uncompiled, ...] = ()

    @property
    def ok(self) -> bool:
        """True if nothing differs. Whether that says anything, ``is_conclusive`` knows."""
        return not self.differences

    @property
    def is_conclusive(self) -> bool:
        """False where nothing was compiled, or eager is not reproducible, and no difference found: that proves nothing."""
        return bool(self.differences) or (self.num_compiled > 0 and not self.irreproducible)

    def __str__(self) -> str:
        head = f"{self.num_compared} values compared: "
        if self.ok:
            lines = [head + "all are eager's, bit for bit."]
        else:
            lines = [f"{head}{len(self.differences)} are not eager's.", _table(self.differences, ("eager", "compiled"))]
        if self.irreproducible:
            lines += [
                f"The step itself is not reproducible: {len(self.irreproducible)} values are other ones when eager runs again.",
                _table(self.irreproducible, ("eager", "eager again")),
            ]
        if not self.num_compiled:
            lines.append("Nothing was compiled: this says nothing about gradc.")
        return "\n".join([*lines, *map(_left_out, dict.fromkeys(self.left_out))])

    def raise_if_different(self) -> None:
        """Raises:
        CheckError: with the table, if any value is not eager's.
        """
        if not self.ok:
            raise CheckError(str(self))


def _table(differences: Sequence[Difference], sides: tuple[str, str]) -> str:
    rows = [[d.name, d.eager, d.compiled, "-" if d.largest is None else f"{d.largest:.1e}"] for d in differences]
    return table(["value", *sides, "largest difference"], rows)


def _left_out(found: Fallback | Uncompiled) -> str:
    text = f"{found.kind}: {found.detail}" if found.detail else found.kind
    how = "graph break" if isinstance(found, Uncompiled) and found.is_break else "ran eagerly"
    return f"{how}: {text}" + (f"\n  at {found.where}" if found.where else "")


def check(step: Callable[..., Any], *args: Any, backend: str | None = None) -> Report:
    """Run ``step(*args)`` eagerly, twice, and compiled, each on copies and from the same seed, and compare bit for bit.

    If a result that requires grad is left over (``step`` did not call backward), its sum is differentiated. Forgets what was
    compiled before (``gradc.reset``), so that it is seen whether anything is.

    Arguments:
        step: a function or a module. Modules among ``args``, and tensors, are copied. Models, optimizers and tensors that a
            function names as globals or closes over are put back after each run.
        backend: of ``gradc.compile``; None: its default.

    Returns:
        A Report: ``.ok``, ``.is_conclusive``, ``str()``, ``.raise_if_different()``.

    Raises:
        ConfigError: if an argument cannot be copied.
        Exception: what the step raises in eager.
    """
    held = held_by(step)

    def observed(prepare: Callable[[Any], Callable[..., Any]]) -> dict[str, Any]:
        target, inputs = copies(step, args)
        with restoring([*held.values()]):
            return _observe(prepare(target), target, inputs, held)

    expected, again = observed(lambda target: target), observed(lambda target: target)
    reset()
    with listening() as events:
        try:
            actual = observed(lambda target: compile(target, backend=backend or DEFAULT_BACKEND))
        except Exception as error:
            actual = {"exception": f"{type(error).__name__}: {error}".splitlines()[0]}
            expected = again = {"exception": None}
    irreproducible = tuple(_differences(expected, again))
    known = {difference.name for difference in irreproducible}
    return Report(
        num_compared=len({*expected, *actual}),
        differences=tuple(found for found in _differences(expected, actual) if found.name not in known),
        irreproducible=irreproducible,
        num_compiled=sum(isinstance(event.what, Graph) for event in events) + counters["compiled_autograd"]["captures"],
        left_out=tuple(event.what for event in events if isinstance(event.what, Fallback | Uncompiled)),
    )


def _differences(eager: dict[str, Any], other: dict[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys([*eager, *other]):
        if (found := _compare(name, eager.get(name), other.get(name))) is not None:
            yield found


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


def _observe(
    run: Callable[..., Any], step: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    """Run once from the fixed seed -> every value that a user could look at afterwards, by name."""
    holders = [("", step)] if isinstance(step, nn.Module) else []
    holders += [*((f"args[{i}]", value) for i, value in enumerate(args)), *named.items()]

    def held() -> dict[str, Any]:
        return {label: value for name, holder in holders for label, value in _named(name, holder)}

    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        random.seed(SEED)
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
    if isinstance(value, torch.optim.Optimizer):
        value = value.state_dict()["state"]
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
