"""A step in eager, call by call: which module makes each, and whose gradient each call of backward is.

    recorded: Prepared -> Log of EagerPlace

Compiled, nobody knows modules any more. So each call of a graph is found again among eager's (``aligned.py``).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from gradc.parity.recording import users_line
from gradc.parity.runs import Prepared
from gradc.reporting.calls import Log, timing
from gradc.reporting.memory import name_known, name_left
from gradc.reporting.model import Phase
from gradc.torch_private.autograd import current_autograd_node, is_inside_backward, next_sequence_nr, sequence_nr


@dataclasses.dataclass(frozen=True)
class EagerPlace:
    """Where a call comes from.

    Attributes:
        number: of the autograd node that a call of forward makes, or that a call of backward is part of.
        module: its path; in backward, that of the forward call with the same number.
        where: the user's line.
    """

    number: int
    module: str
    where: str


class _Places:
    """Says for each call where it comes from, while the hooks of all modules tell it which is running."""

    def __init__(self, paths: Mapping[int, str]) -> None:
        self._paths = paths
        self._stack = [""]
        self._made: dict[int, EagerPlace] = {}  # by the number of the node, the first call of forward that has it

    def __call__(self, op: Any) -> tuple[Phase, EagerPlace]:
        node = current_autograd_node() if is_inside_backward() else None
        if node is not None:
            number = sequence_nr(node)
            made = self._made.get(number)
            return Phase.BACKWARD, made or EagerPlace(number, "", users_line())
        place = EagerPlace(next_sequence_nr() - 1, self._stack[-1], users_line())
        if not torch.is_grad_enabled():
            return Phase.OTHER, place
        self._made.setdefault(place.number, place)
        return Phase.FORWARD, place

    @contextlib.contextmanager
    def hearing_modules(self) -> Iterator[None]:
        hooks = register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._stack.append(self._paths.get(id(module), self._stack[-1] or type(module).__name__))

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        self._stack.pop()


def paths_of(holders: Mapping[str, Any]) -> dict[int, str]:
    """The path of each module that the step works on, by its id; that of a part begins with its whole's."""
    found: dict[int, str] = {}
    for holder, whole in holders.items():
        if isinstance(whole, nn.Module):
            for name, module in whole.named_modules():
                path = f"{holder}.{name}".strip(".").replace("_orig_mod.", "")
                found.setdefault(id(module), path)
    return found


def recorded(prepared: Prepared, has_rest: bool) -> Log[EagerPlace]:
    """``has_rest``: backward is left to us."""
    log: Log[EagerPlace] = Log()
    places = _Places(paths_of(prepared.holders))
    name_known(log.storages, prepared.holders)
    with places.hearing_modules(), timing(log, places):
        prepared.once(has_rest)
    name_left(log.storages, prepared.holders, len(log.calls))
    return log
