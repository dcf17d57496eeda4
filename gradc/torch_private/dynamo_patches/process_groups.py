"""Rank, world size and existence of process groups: compiled code serves as long as they are what it was told.

Dynamo asks for them while it traces, and takes the answers for constants. A process group may be made behind the first call, as
by ``init_process_group`` after a check of the model, or made again with another rank, as in elastic training.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import after

_ANSWERS = "gradc_process_groups"
_QUESTIONS = (
    "is_initialized get_rank get_world_size get_process_group_ranks _get_group_size_by_name _get_group_tag _rank_not_in_group"
    " _resolve_group_name_by_ranks_and_tag"
)


def guard_process_groups() -> Patch:
    """Guard what Dynamo is told of the default process group: asked again only where that is another one."""
    questions = set(_questions())

    def call(result: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if inspect.isfunction(self.value) and self.value in questions:
            _guard(tx.output, self.value, args, kwargs)
        return result

    return Patch(
        "guard_process_groups",
        "A process group that is made after the first call has a rank and a size that Dynamo was not told.",
        (after(TorchInGraphFunctionVariable, "call_function", call),),
    )


def _questions() -> Iterator[Any]:
    """None where torch was built without process groups."""
    if torch.distributed.is_available():
        yield from (getattr(torch.distributed.distributed_c10d, name) for name in _QUESTIONS.split())


def _guard(output: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """A group that a program names is an object that Dynamo guards."""
    if all(value.is_python_constant() for value in (*args, *kwargs.values())):
        constants = [arg.as_python_constant() for arg in args]
        named = {name: value.as_python_constant() for name, value in kwargs.items()}
        question = functools.partial(function, *constants, **named)
        guards = vars(output).setdefault(_ANSWERS, {})
        key = function, repr(constants), repr(named)
        if key not in guards:
            guards[key] = GlobalStateSource().make_guard(_Answer(question).guard)
        output.guards.add(guards[key])


class _Answer:
    """What a question was answered, of which default group: that is not kept alive."""

    def __init__(self, question: functools.partial[Any]) -> None:
        self._question, self._answer = question, question()
        self._group = _reference_to_group()

    def guard(self, builder: Any, guard: Any) -> None:
        """Add the guard: Dynamo calls this when all is traced."""
        text = f"{self._question.func.__name__} of process groups is {self._answer}"
        builder.guard_manager.root.add_lambda_guard(self._holds, [text], guard.user_stack)

    def _holds(self, _: Any) -> bool:
        group = _reference_to_group()
        if group is not self._group:
            if not self._is_same():
                return False
            self._group = group
        return True

    def _is_same(self) -> bool:
        try:
            return bool(self._question() == self._answer)
        except (RuntimeError, ValueError):  # there is no such group now
            return False


def _reference_to_group() -> weakref.ref[Any] | None:
    """References to one living object are one."""
    group = torch.distributed.GroupMember.WORLD
    return weakref.ref(group) if group is not None else None
