"""One value of a step, in eager and compiled: is it the same, is it rounded otherwise, or is it wrong?

    difference: (name, eager's, the compiled step's) -> Difference, or None

The rule. *Wrong* is: None on one side only; another class, dtype, layout, shape or requires_grad; a number that is no
floating-point number and not equal; a NaN or an infinity on one side only; and an element that is further from eager's than
``limit`` times the largest element of eager's tensor. The limit is 1024 steps of the dtype's precision, and at most 1/16:
sums in another order, fused operations and other kernels stay far below it, and what was computed in bfloat16 and handed
on as float32 lies above. Everything else of other bits *rounds otherwise*. The same bits under other strides are told, too.
A sum whose terms cancel, like the gradient of a bias before BatchNorm, is nothing but rounding, whatever its largest element:
what is within 4 steps of precision of the ``scale``, the largest element of all values of its kind, rounds otherwise, too.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gradc.bits import same_bits
from gradc.parity.ulps import Histogram, histogram, is_measured
from gradc.shadow.arrivals import compared_traits

_MOST_STEPS, _MOST = 1024, 1 / 16
_MOST_LETTERS = 40  # of a value that is no tensor, as a generator's state
_STEPS_OF_SCALE = 4
_MISSING = object()
ZEROS = "zeros instead of None"


class Kind(enum.IntEnum):
    """In what way a value is not eager's; the worst is the largest."""

    STRIDES = 1
    ROUNDED = 2
    WRONG = 3

    def __str__(self) -> str:
        return ("other strides", "rounds otherwise", "wrong")[self - 1]


class Stage(enum.IntEnum):
    """When a step makes a value: what comes late is computed of what comes early."""

    OUTPUT = 1
    GRADIENT = 2
    STATE = 3


@dataclasses.dataclass(frozen=True)
class Order:
    """In which order hooks ran, by name."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return "1 call" if len(self.names) == 1 else f"{len(self.names)} calls"

    def first_difference(self, other: Order) -> str:
        """The first thing in which another order is not this one, eager's, in words."""
        mine, theirs = collections.Counter(self.names), collections.Counter(other.names)
        for name in dict.fromkeys((*self.names, *other.names)):
            if mine[name] != theirs[name]:
                ran = f"ran {_times(theirs[name])}" if theirs[name] else "did not run"
                return f"the {name} {ran}, in eager {_times(mine[name])}"
        first, instead = next((a, b) for a, b in zip(self.names, other.names) if a != b)
        return f"the {first} ran before the {instead} in eager, and after it compiled"


def _times(number: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(number, f"{number} times")


@dataclasses.dataclass(frozen=True)
class Value:
    """What was seen under a name: a copy if it is a tensor, and the traits of the original."""

    value: Any
    stage: Stage
    traits: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def of(value: Any, stage: Stage) -> Value:
        if not isinstance(value, Tensor):
            return Value(value, stage)
        traits = compared_traits(value) | {"requires_grad": value.requires_grad}
        return Value(value.detach().clone(), stage, tuple(traits.items()))


MISSING = Value(_MISSING, Stage.OUTPUT)


@dataclasses.dataclass(frozen=True)
class Difference:
    """One value that is not eager's.

    Attributes:
        name: "grad of weight".
        eager, compiled: both sides in words.
        largest: the largest difference of two elements; None where there is nothing to subtract.
        kind: whether it is rounded otherwise, or wrong.
        why: the first thing that makes it so, in words.
        step: the number of the step, from 1.
        ulps: how many elements are how far apart; None unless it is rounded otherwise.
    """

    name: str
    eager: str
    compiled: str
    largest: float | None
    kind: Kind = Kind.WRONG
    why: str = ""
    step: int = 1
    ulps: Histogram | None = None

    def to_dict(self) -> dict[str, Any]:
        found = dataclasses.asdict(self)
        return found | {"kind": str(self.kind), "ulps": None if self.ulps is None else self.ulps.to_dict()}


def difference(
    name: str, eager: Value, other: Value, step: int = 1, is_grown: bool = False, scale: float = 0.0
) -> Difference | None:
    """``is_grown``: it is computed of what rounds otherwise already, so the size of a difference tells nothing.

    ``scale``: the largest element of eager's values of this kind, of the gradients, say; 0: only its own count.
    """
    kind, why = _kind(eager, other, is_grown, scale)
    if kind is None:
        return None
    a, b = eager.value, other.value
    ulps = histogram(a, b) if kind is Kind.ROUNDED and is_measured(a, b) else None
    return Difference(name, _in_words(a), _in_words(b), _largest(a, b), kind, why, step, ulps)


def _kind(eager: Value, other: Value, is_grown: bool, scale: float) -> tuple[Kind | None, str]:
    a, b = eager.value, other.value
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return (None, "") if same_bits(a, b) else (Kind.WRONG, _of_unlike(a, b))
    theirs, mine = dict(eager.traits), dict(other.traits)
    wrong = [name for name in theirs if mine.get(name) != theirs[name] and name != "stride"]
    if wrong:
        return Kind.WRONG, f"{wrong[0]} is {mine.get(wrong[0])}, in eager {theirs[wrong[0]]}"
    if not same_bits(a, b):
        why = "" if is_grown else _beyond_rounding(a, b, scale)
        return (Kind.WRONG, why) if why else (Kind.ROUNDED, "")
    is_laid_out_alike = mine.get("stride") == theirs.get("stride")
    return (None, "") if is_laid_out_alike else (Kind.STRIDES, f"strides {mine['stride']}, in eager {theirs['stride']}")


def _of_unlike(eager: Any, other: Any) -> str:
    if isinstance(eager, Order) and (isinstance(other, Order) or other is _MISSING):
        return eager.first_difference(other if isinstance(other, Order) else Order(()))
    if eager is None and isinstance(other, Tensor):
        return ZEROS if not other.count_nonzero() else "a tensor instead of None"
    if other is None and isinstance(eager, Tensor):
        return "None instead of a tensor"
    return f"{_in_words(other)} instead of {_in_words(eager)}"


def _beyond_rounding(eager: Tensor, other: Tensor, scale: float) -> str:
    """Why two tensors alike in their traits are further apart than rounding explains; "" if they are not."""
    if not is_measured(eager, other):
        return "" if eager.is_floating_point() and _is_near(eager.to_dense(), other.to_dense(), scale) else "other values"
    if num := int((eager.isfinite() != other.isfinite()).sum()):
        return f"infinite or NaN on one side only in {num} of {eager.numel()} elements"
    if _is_near(eager, other, scale):
        return ""
    wide_eager, wide = _wide(eager), _wide(other)
    bound = limit(eager.dtype) * _magnitude(wide_eager)
    masked = ((wide_eager == 0) != (wide == 0)) & ((wide_eager - wide).abs() > bound)
    if num := int(masked.sum()):
        return f"zero on one side only in {num} of {eager.numel()} elements"
    share = _magnitude(wide_eager - wide) / max(_magnitude(wide_eager), torch.finfo(torch.float64).tiny)
    return f"off by {share:.1e} of the largest element, where rounding explains {limit(eager.dtype):.1e}"


def _is_near(eager: Tensor, other: Tensor, scale: float) -> bool:
    if eager.layout is not torch.strided or eager.shape != other.shape:
        return False
    a, b = _wide(eager), _wide(other)
    floor = _STEPS_OF_SCALE * torch.finfo(eager.dtype).eps * scale
    return _magnitude(a - b) <= max(limit(eager.dtype) * _magnitude(a), floor)


def scale_of(values: Iterable[Value]) -> float:
    """The largest element of all floating-point tensors among them."""
    tensors = [each.value for each in values if is_measured(each.value, each.value)]
    return max((_magnitude(_wide(tensor)) for tensor in tensors), default=0.0)


def limit(dtype: torch.dtype) -> float:
    """How far from eager's an element may be that rounds otherwise, as a part of the tensor's largest element."""
    return min(_MOST_STEPS * torch.finfo(dtype).eps, _MOST)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _magnitude(wide: Tensor) -> float:
    """The largest finite element's."""
    sizes = wide.abs()
    sizes = sizes[sizes.isfinite()]
    return sizes.max().item() if sizes.numel() else 0.0


def _largest(eager: Any, compiled: Any) -> float | None:
    if not isinstance(eager, Tensor) or not isinstance(compiled, Tensor) or not eager.numel():
        return None
    if eager.dtype != compiled.dtype or eager.shape != compiled.shape or eager.layout != compiled.layout:
        return None
    return (_wide(eager.to_dense()) - _wide(compiled.to_dense())).abs().max().item()


def _in_words(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    text = "nothing" if value is _MISSING else str(value) if isinstance(value, Order) else repr(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
