"""What a user could look at after a training step, by name: results, gradients, parameters, optimizers, random generators.

observe:       (results of the step, {name: what it works on}) -> {name: Value}
differentiate: results -> whether backward was run, from what still has a graph
copies:        (step, arguments) -> both again, in memory of their own
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradc.errors import ConfigError
from gradc.parity.differences import Stage, Value
from gradc.parity.state import generators, has_state_dict


def copies(
    step: Callable[..., Any], args: tuple[Any, ...], carry_over: Callable[[Tensor, Tensor], None] | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Fresh leaves for tensors, deep copies of everything else, with what they share still shared.

    ``carry_over`` is called with each tensor that was copied, and its copy.
    """
    memo: dict[int, Any] = {}
    for leaf in pytree.tree_leaves(args):
        if isinstance(leaf, Tensor) and not leaf.is_leaf:
            memo[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
    try:
        copied = (copy.deepcopy(step, memo) if isinstance(step, nn.Module) else step), copy.deepcopy(args, memo)
    except (TypeError, RuntimeError) as error:
        raise ConfigError(f"gradc.check copies its arguments for each run, but cannot copy one: {error}") from error
    if carry_over is not None:
        for tensor in _tensors_in((step, args)):
            if id(tensor) in memo:
                carry_over(tensor, memo[id(tensor)])
    return copied


def _tensors_in(values: Any) -> Iterator[Tensor]:
    """Each once."""
    known = set[int]()
    for leaf in pytree.tree_leaves(values):
        for tensor in (*leaf.parameters(), *leaf.buffers()) if isinstance(leaf, nn.Module) else (leaf,):
            if isinstance(tensor, Tensor) and id(tensor) not in known:
                known.add(id(tensor))
                yield tensor


def holders_of(step: Callable[..., Any], args: tuple[Any, ...], held: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the step works on, by name: itself if it is a module, its arguments, and what it names."""
    own = {"": step} if isinstance(step, nn.Module) else {}
    return own | {f"args[{i}]": value for i, value in enumerate(args)} | dict(held)


def observe(result: Any, holders: Mapping[str, Any]) -> dict[str, Value]:
    seen = {name: Value.of(value, Stage.OUTPUT) for name, value in _named("result", result)}
    for name, value in generators().items():
        seen[name] = Value.of(_frozen(value), Stage.OUTPUT)
    for name, value, stage in held_values(holders):
        seen[name] = Value.of(value, stage)
        if is_trained(value):
            seen[f"grad of {name}"] = Value.of(value.grad, Stage.GRADIENT)
    return seen


def is_generator(name: str) -> bool:
    """True for the name under which ``observe`` has a generator of the process."""
    return name in generators()


def trained(holders: Mapping[str, Any]) -> list[Tensor]:
    return [value for _, value, _ in held_values(holders) if is_trained(value)]


def is_trained(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_leaf and value.requires_grad


def differentiate(result: Any, leaves: Sequence[Any] = ()) -> bool:
    """Backward, with gradients of ones, from every result that still has a graph; False if none has.

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
        return False
    return bool(live)


def held_values(holders: Mapping[str, Any]) -> Iterator[tuple[str, Any, Stage]]:
    """What the holders hold, each with its name and the stage of a step that changes it."""
    for name, holder in holders.items():
        is_late = has_state_dict(holder)
        for label, value in _named(name, holder):
            yield label, value, Stage.STATE if is_late or is_trained(value) else Stage.OUTPUT


def _named(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors, and other leaves, of an argument or a result, each with a name for the report."""
    if isinstance(value, nn.Module):
        prefix = f"{name}." if name else ""
        yield from ((prefix + key, parameter) for key, parameter in value.named_parameters())
        yield from ((prefix + key, buffer) for key, buffer in value.named_buffers())
        return
    if isinstance(value, torch.optim.Optimizer):
        value = value.state_dict()["state"]
    elif has_state_dict(value):
        value = value.state_dict()
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        if path and (isinstance(leaf, nn.Module) or has_state_dict(leaf)):
            yield from _named(name + pytree.keystr(path), leaf)
        elif leaf is None or isinstance(leaf, Tensor | int | float | str | bool):
            yield name + pytree.keystr(path), leaf


def _frozen(state: Any) -> Any:
    """A generator's state, as something that compares by its value."""
    return state if isinstance(state, Tensor) else repr(state)
