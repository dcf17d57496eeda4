"""The calls of a step, timed one by one below autograd, in eager and inside of a graph alike, and the memory they take.

    with timing(log, place): ...          log.calls -> list of Call

On the host the clock runs around the call of the op alone, from Python: some microseconds of each figure are that. In eager and
in a graph they are the same. On a GPU it is the GPU's own time (gradc/accelerator.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradc.accelerator import timed
from gradc.ir.values import leaves
from gradc.reporting.model import Phase
from gradc.reporting.storages import Storages
from gradc.torch_private.fakes import is_fake

Place = TypeVar("Place")


@dataclasses.dataclass(frozen=True)
class Made:
    """A tensor that a call returned, or was given."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int

    @staticmethod
    def of(tensor: Tensor) -> Made:
        shape = () if tensor.is_nested else tuple(tensor.shape)
        return Made(str(tensor.dtype).removeprefix("torch."), shape, tensor.numel() * tensor.element_size())


@dataclasses.dataclass(frozen=True)
class Call(Generic[Place]):
    """One call: ``place`` says where it comes from, in the words of who records it."""

    op: str
    phase: Phase
    seconds: float
    made: tuple[Made, ...]
    place: Place


class Log(Generic[Place]):
    """The calls of one run, in order, and the memory that they were given and made."""

    def __init__(self) -> None:
        self.calls: list[Call[Place]] = []
        self.storages = Storages()

    def add(self, call: Call[Place], given: list[Tensor], made: list[Tensor]) -> None:
        self.storages.note(len(self.calls), given, made)
        self.calls.append(call)


def quickest(logs: Sequence[Log[Place]]) -> Log[Place]:
    """The first of the logs of runs that make the same calls, each with the least of its times: what disturbs only adds."""
    first = logs[0]
    same = [log.calls for log in logs if [call.op for call in log.calls] == [call.op for call in first.calls]]
    first.calls = [dataclasses.replace(calls[0], seconds=min(call.seconds for call in calls)) for calls in zip(*same)]
    return first


class timing(TorchDispatchMode, Generic[Place]):
    """A mode that logs each call. ``place`` is asked for its phase and place before the op runs."""

    def __init__(self, log: Log[Place], place: Callable[[Any], tuple[Phase, Place]]) -> None:
        super().__init__()
        self._log, self._place = log, place

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What is compiled inside, as torch.cond is, is none of our business."""
        return True

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(map(is_fake, given)):
            return op(*args, **kwargs)
        phase, place = self._place(op)
        result, seconds = timed(functools.partial(op, *args, **kwargs), given)
        made = [leaf for leaf in leaves(result) if isinstance(leaf, Tensor)]
        self._log.add(Call(str(op), phase, seconds, tuple(map(Made.of, made)), place), given, made)
        return result
