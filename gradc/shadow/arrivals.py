"""The gradients that a backward pass sent to one input of a verified call, added up as the engine does.

    Arrivals.add: (gradient, what the engine had) -> None
    difference: (name, eager's gradient, arrivals) -> a sentence, or ""

Under create_graph what others sent there before counts, too: the engine adds to it, and a segment takes it out of the engine's
buffer and hands on the sum (Note [Higher order]). Then eager's sum begins with the ``seed``, as well.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from gradc.bits import same_bits
from gradc.shadow.copies import cloned, with_history
from gradc.shadow.differences import of_tensors, traits
from gradc.torch_private.reexecution import gradient_edge

Edge = tuple[Any, int]
_COMPARED = ("class", "dtype", "layout", "shape", "stride")


@dataclasses.dataclass
class Arrivals:
    """
    Attributes:
        seed: what the engine had for the input before the first gradient came out of the call; a copy, with a history if
            the original had one.
        seed_edge: where a gradient of the original goes to, if a segment took it.
        edges: where gradients of what was handed on go to; only of what has a history.
        is_mixed: whether gradients from elsewhere came in between.
        traits: of the one gradient that came; None if several were added up.
    """

    sum: Tensor | None = None
    seed: Tensor | None = None
    seed_edge: Edge | None = None
    edges: list[Edge] = dataclasses.field(default_factory=list)
    is_there: bool = False
    is_mixed: bool = False
    traits: dict[str, Any] | None = None
    _edge_of_seed: Edge | None = None

    def add(self, grad: Tensor, before: Tensor | None = None, is_taken: bool = False) -> None:
        """``before``: what the engine had; ``is_taken``: and has no more, for ``grad`` holds it."""
        if before is not None and not self.is_there:
            self._begin_with(before)
        self.is_mixed = self.is_mixed or (before is not None and not same_bits(before.detach(), self.sum))
        self.traits = None if self.is_there or is_taken or before is not None else compared_traits(grad)
        with torch.no_grad():
            self.sum = cloned(grad) if self.sum is None or is_taken else torch.add(self.sum, grad.detach())
        self.edges = [] if is_taken else self.edges
        self.seed_edge = self._edge_of_seed if is_taken else self.seed_edge
        self.edges += [gradient_edge(grad)] if grad.requires_grad else []
        self.is_there = True

    def _begin_with(self, seed: Tensor) -> None:
        self.sum = self.seed = with_history(seed)
        self._edge_of_seed = gradient_edge(seed) if seed.requires_grad else None

    @property
    def has_history(self) -> bool:
        return bool(self.edges) or (self.seed is not None and self.seed.requires_grad)


def compared_traits(grad: Tensor) -> dict[str, Any]:
    """Without the strides of dimensions of size 1: they hang on who else holds a gradient, and shadow mode does."""
    found = {name: trait for name, trait in traits(grad).items() if name in _COMPARED}
    if "stride" in found:
        found["stride"] = tuple(
            stride for stride, size in zip(grad.stride(), grad.shape, strict=True) if size > 1 and grad.numel()
        )
    return found


def difference(name: str, eager: Tensor | None, arrived: Arrivals, is_differentiable: bool) -> str:
    """How what arrived is not what eager's copy got; "" if nothing differs."""
    name = f"gradient of {name}"
    is_there = arrived.sum is not None and arrived.is_there
    if eager is None or arrived.sum is None or not is_there:
        return "" if eager is None and not is_there else f"{name}: {_there(is_there)}, in eager {_there(eager is not None)}"
    if is_differentiable and eager.requires_grad != arrived.has_history:
        return f"{name}: requires_grad is {arrived.has_history}, in eager {eager.requires_grad}"
    theirs = compared_traits(eager)
    if wrong := next((trait for trait in theirs if arrived.traits and arrived.traits.get(trait) != theirs[trait]), None):
        return f"{name}: {wrong} is {(arrived.traits or {}).get(wrong)}, in eager {theirs[wrong]}"
    if same_bits(eager.detach(), arrived.sum.detach()):
        return ""
    return f"{name}: {of_tensors(eager.detach().clone(), arrived.sum.detach())}"


def _there(is_there: bool) -> str:
    return "there" if is_there else "None"
