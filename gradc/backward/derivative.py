"""Record a segment's backward with gradient recording on: the tape of its derivative, which becomes a region of its own.

    record_derivative: (Tape, Segment, BackwardKey, History) -> Tape
    history_of:        (tangents, saved) -> History

The inputs are the defined tangents, the saved tensors, and the symbols; the outputs are the gradients. See Note [Higher order].
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc.ambient import autocast_set_to
from gradc.analysis.segments import Segment
from gradc.backward.formulas import refuse_other_formulas
from gradc.backward.key import BackwardKey
from gradc.backward.run_nodes import run_nodes
from gradc.backward.specialized import CutTape
from gradc.backward.trace import fake_tangent, saved_name
from gradc.ir.metadata import symbolic_number
from gradc.ir.sizes import Sizes
from gradc.ir.values import TensorMeta
from gradc.tape.ctx_state import watching
from gradc.tape.record import TapeRecorder, record
from gradc.tape.tape import Tape
from gradc.tape.weight_casts import weights_among


@dataclasses.dataclass(frozen=True)
class History:
    """What a derivative is made for besides the key.

    ``tangents``: of each that is defined, whether it requires a gradient, and whether it is a leaf. ``weights``: of each saved
    tensor, whether autocast keeps its copy; None if it keeps none.
    """

    tangents: tuple[tuple[bool, bool], ...]
    weights: tuple[bool, ...] | None


def history_of(tangents: Sequence[torch.Tensor | None], saved: Sequence[torch.Tensor]) -> History:
    """See the module's docstring."""
    flags = tuple((tangent.requires_grad, tangent.is_leaf) for tangent in tangents if tangent is not None)
    return History(flags, weights_among(saved))


def record_derivative(tape: Tape, segment: Segment, key: BackwardKey, history: History) -> Tape:
    """See the module's docstring.

    Raises:
        UnsupportedError: for a node that does on fake tensors what it does not do on real ones.
    """
    refuse_other_formulas(tape, segment, create_graph=True)
    tangents, saved = _inputs(tape, segment, key, history)
    names = ["tangent"] * len(tangents) + [saved_name(tape, index) for index in segment.saved]
    edges = [None] * len(tangents) + [tape.saved[index].edge for index in segment.saved] + [None] * len(tape.symints)

    def backward(derivative: TapeRecorder, *primals: Any) -> list[Any]:
        given = iter(primals[: len(tangents)])
        by_index = dict(zip(segment.saved, primals[len(tangents) :], strict=False))
        incoming = [None if meta is None else next(given) for meta in key.tangents]
        for index in segment.on_ctx:
            derivative.recorder.identify(tape.saved[index].fake, by_index[index])
        with watching(tape, segment.nodes), tape.unpacking(lambda index: by_index.get(index, tape.saved[index].fake)):
            return run_nodes(tape, segment, incoming, key.needed, create_graph=True, recorder=derivative.recorder)

    with tape.lock, autocast_set_to(key.ambient.autocast), torch.enable_grad():
        derivative = record(
            backward,
            [*tangents, *saved, *tape.symints.values()],
            [*names, *map(str, tape.symints)],
            tape.fake_mode,
            f"{tape.program.name}_d",
            edges=edges,
            is_nested=history.weights is not None,
            stand_ins=tape.stand_ins,
        )
    return dataclasses.replace(derivative, has_custom_ops=derivative.has_custom_ops or tape.has_custom_ops)


def _inputs(tape: Tape, segment: Segment, key: BackwardKey, history: History) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Fake tangents and saved tensors, with the histories that ``history`` tells of."""
    saved = [tape.saved[index].fake for index in segment.saved]
    with tape.fake_mode:
        fakes = [fake_tangent(tape, meta) for meta in key.tangents if meta is not None]
        tangents = [_with_history(fake, *flag) for fake, flag in zip(fakes, history.tangents, strict=True)]
        return tangents, [_as_weight(fake, is_one) for fake, is_one in itertools.zip_longest(saved, history.weights or ())]


def sizes_of_parent(tape: Tape, sizes: Callable[[Any], Any]) -> Sizes:
    """The values of the tape's symbols, of those of its derivative: of two symbols found equal since, that knows one."""
    return Sizes({symbol.name: sizes(symbolic_number(number)) for symbol, number in tape.symints.items()})


def record_specialized(cut: CutTape, segment: Segment, key: BackwardKey, history: History, sizes: Callable[[Any], Any]) -> Tape:
    """The same derivative over ``cut``, which is the tape with the plain numbers that ``sizes`` says."""
    tangents = tuple(None if meta is None else _with_sizes(meta, sizes) for meta in key.tangents)
    return record_derivative(cut.tape, cut.segments[segment.number], dataclasses.replace(key, tangents=tangents), history)


def _as_weight(fake: torch.Tensor, is_weight: bool | None) -> torch.Tensor:
    """``fake``, a leaf or not as said, if it is."""
    if is_weight is None or not fake.requires_grad or fake.is_leaf == is_weight:
        return fake
    return _with_history(fake.detach(), True, is_weight)


def _with_history(fake: torch.Tensor, requires_grad: bool, is_leaf: bool) -> torch.Tensor:
    """``fake``, a leaf or not as said: autocast keeps its copies of leaves."""
    if not requires_grad:
        return fake
    with torch.enable_grad():
        return fake.requires_grad_() if is_leaf else fake.requires_grad_().view_as(fake)


def _with_sizes(meta: TensorMeta, sizes: Callable[[Any], Any]) -> TensorMeta:
    shape, stride = (tuple(sizes(number) for number in numbers) for numbers in (meta.shape, meta.stride))
    return dataclasses.replace(meta, shape=shape, stride=stride, offset=sizes(meta.offset))
