"""What a run of a Program leaves behind beside numbers: who is whom, what lies where, and what was counted.

    left_by: (runner, inputs, seed) -> Left

Found out by looking, and by counting versions up: two runs are compared by what anybody could see, whatever ran the Program.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gradc.errors import UnsupportedError
from gradc.torch_private.autograd import storage_key

Runner = Callable[[list[Any]], list[Any]]


@dataclasses.dataclass(frozen=True)
class Left:
    """See the module's docstring.

    Attributes:
        outputs: as in ``CandidateSpec``, and so ``counted`` and ``views``.
        layouts: of each output: dtype, device, sizes, strides, offset, bytes of its memory, lazy conjugate or negative.
        memories: for each output, the first of inputs and outputs that lies in the same memory.
        values: the inputs and the outputs, as they are afterwards.
    """

    outputs: tuple[tuple[str, int], ...]
    counted: tuple[tuple[int, int], ...]
    views: tuple[tuple[int, bool, int], ...]
    layouts: tuple[Any, ...]
    memories: tuple[int, ...]
    values: tuple[Any, ...]


def left_by(run: Runner, inputs: Sequence[Any], seed: int) -> Left:
    """Run it on ``inputs``, and look. Counts versions up afterwards.

    Raises:
        UnsupportedError: for an output that is neither a tensor nor an int.
    """
    versions = [value._version if isinstance(value, torch.Tensor) else 0 for value in inputs]
    torch.manual_seed(seed)
    outputs = run(list(inputs))
    counted = tuple(
        (position, value._version - before)
        for position, (value, before) in enumerate(zip(inputs, versions, strict=True))
        if isinstance(value, torch.Tensor) and value._version != before
    )
    memories = [_memory(value) for value in (*inputs, *outputs)]
    return Left(
        outputs=tuple(_origins(inputs, outputs)),
        counted=counted,
        layouts=tuple(map(_layout, outputs)),
        memories=tuple(memories.index(memory) for memory in memories),
        values=(*inputs, *outputs),
        views=tuple(_views(inputs, outputs)),
    )


def _origins(inputs: Sequence[Any], outputs: Sequence[Any]) -> Iterator[tuple[str, int]]:
    numbers = itertools.count()
    for number, out in enumerate(outputs):
        if isinstance(out, torch.Tensor):
            found = (("input", _position(out, inputs)), ("again", _position(out, outputs[:number])))
            known = next(((kind, position) for kind, position in found if position is not None), None)
            yield known or ("made", next(numbers))
        elif out is not None and type(out) is not int:
            raise UnsupportedError("output that is a number, and no int")
        else:
            yield ("none", 0) if out is None else ("number", out)


def _position(tensor: torch.Tensor, values: Sequence[Any]) -> int | None:
    return next((position for position, value in enumerate(values) if value is tensor), None)


def _views(inputs: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[int, bool, int]]:
    """Of the outputs that are no input themselves, each with the first that has its version counter."""
    found = []
    for number, out in enumerate(outputs):
        if isinstance(out, torch.Tensor) and _position(out, (*inputs, *outputs[:number])) is None:
            known = [(True, i, value) for i, value in enumerate(inputs)]
            known += [(False, i, value) for i, value in enumerate(outputs[:number])]
            base = next(((is_input, i) for is_input, i, value in known if _has_same_counter(value, out)), None)
            if base is not None:
                found.append((number, *base))
    return found


def _has_same_counter(value: Any, out: torch.Tensor) -> bool:
    if not isinstance(value, torch.Tensor) or _memory(value) != _memory(out):
        return False
    before = value._version
    torch.autograd.graph.increment_version(out)
    return value._version != before


def _layout(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    lies = value.dtype, value.device, tuple(value.shape), value.stride(), value.storage_offset()
    return *lies, value.untyped_storage().nbytes(), value.is_conj(), value.is_neg()


def _memory(value: Any) -> Any:
    return storage_key(value) if isinstance(value, torch.Tensor) else object()
