"""The hooks that run in a step, eager or compiled alike: in which order, and which gradients they are given.

    with hearing(what the step works on) as heard: step()        heard.seen() -> {name: Value}
    carry_over: (tensor, its copy) -> None                       the copy has the tensor's hooks, too

Heard are the hooks of autograd and of optimizers that are there when a step begins: on parameters and other leaves, before and
after their gradients are accumulated, on the backward of modules, around the steps of optimizers. Each is wrapped in its place
for as long as the step runs, and these are places that compilers leave to Python. Not heard: hooks on the forward of modules,
which are compiled with it, so that a wrapper would change what is compiled; those on nodes, which torch keeps where nobody
finds them; and those that a step registers as it runs.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from gradc.parity.differences import Order, Stage, Value
from gradc.parity.observe import held_values, is_trained
from gradc.torch_private.fakes import is_fake
from gradc.torch_private.hooks import Hooks, after_step, before_backward, before_step, behind_gradient, on_backward, on_gradient
from gradc.torch_private.modes import without_dispatch_modes


class Heard:
    """What was heard so far, call by call."""

    def __init__(self) -> None:
        self._order: list[str] = []
        self._given: dict[str, Value] = {}
        self._num_calls: collections.Counter[str] = collections.Counter()

    def note(self, name: str, given: Any) -> None:
        tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
        if any(map(is_fake, tensors)):
            return
        self._order.append(name)
        self._num_calls[name] += 1
        call = f"the {name}, call {self._num_calls[name]}" if self._num_calls[name] > 1 else f"the {name}"
        for number, tensor in enumerate(tensors):
            place = f", gradient {number}" if len(tensors) > 1 else ""
            with without_dispatch_modes():
                self._given[f"what {call} got{place}"] = Value.of(tensor, Stage.GRADIENT)

    def seen(self) -> dict[str, Value]:
        """Nothing where no hook ran."""
        return {"order of hooks": Value(Order(tuple(self._order)), Stage.GRADIENT)} | self._given if self._order else {}


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where torch has hooks. ``given``: of the arguments of a hook, the gradients."""

    name: str
    hooks: Hooks
    given: Callable[..., Any]


@contextlib.contextmanager
def hearing(holders: Mapping[str, Any]) -> Iterator[Heard]:
    """See the module's docstring."""
    heard = Heard()
    with contextlib.ExitStack() as stack:
        for place in [*_places(holders)]:
            for key, hook in [*place.hooks.items()]:
                number = f" {[*place.hooks].index(key) + 1}" if len(place.hooks) > 1 else ""
                place.hooks[key] = wrapped = _wrapped(hook, place.name.replace("hook", f"hook{number}", 1), place.given, heard)
                stack.callback(_put_back, place.hooks, key, wrapped, hook)
        yield heard


def _wrapped(hook: Callable[..., Any], name: str, given: Callable[..., Any], heard: Heard) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        heard.note(name, given(*args))
        return hook(*args, **kwargs)

    return call


def _put_back(hooks: Hooks, key: int, wrapped: Callable[..., Any], hook: Callable[..., Any]) -> None:
    """Unless the step has removed it."""
    if hooks.get(key) is wrapped:
        hooks[key] = hook


def _places(holders: Mapping[str, Any]) -> Iterator[_Place]:
    known = set[int]()
    for place in _all_places(holders):
        if place.hooks and id(place.hooks) not in known:
            known.add(id(place.hooks))
            yield place


def _all_places(holders: Mapping[str, Any]) -> Iterator[_Place]:
    for name, value, _ in held_values(holders):
        if is_trained(value):
            yield _Place(f"hook on {name}", on_gradient(value), lambda grad: grad)
            yield _Place(f"hook behind the gradient of {name}", behind_gradient(value), lambda leaf: leaf.grad)
    for holder, value in holders.items():
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, nn.Module):
                yield from _of_module(holder, leaf)
            elif isinstance(leaf, Optimizer):
                yield _Place(f"hook before the step of {holder}", before_step(leaf), lambda *_: ())
                yield _Place(f"hook after the step of {holder}", after_step(leaf), lambda *_: ())


def _of_module(holder: str, whole: nn.Module) -> Iterator[_Place]:
    for path, module in whole.named_modules():
        name = ".".join(filter(None, (holder, path))) or type(whole).__name__
        yield _Place(f"hook before the backward of {name}", before_backward(module), lambda module, grads: grads)
        yield _Place(f"hook on the backward of {name}", on_backward(module), lambda module, *grads: grads)


def carry_over(tensor: Tensor, copy: Tensor) -> None:
    """The copy, which torch makes without hooks, has those of the tensor, too."""
    for hook in on_gradient(tensor).values():
        copy.register_hook(hook)
    for hook in behind_gradient(tensor).values():
        copy.register_post_accumulate_grad_hook(hook)
