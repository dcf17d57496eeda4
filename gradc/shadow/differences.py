"""What differs between a call in eager and the same call compiled, in words.

differences: (values that eager left, those that the compiled call left, the copies that eager had) -> names, sentences
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from gradc.bits import same_bits
from gradc.shadow.copies import Copies, with_history
from gradc.shadow.reachable_state import is_address
from gradc.ulps import steps_between

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype)


def differences(eager: dict[str, Any], compiled: dict[str, Any], copies: Copies) -> Iterator[tuple[str, str]]:
    """The name of each value that is not eager's, and a sentence."""
    for name in dict.fromkeys([*eager, *compiled]):
        if name not in compiled:
            yield name, f"{name}: eager leaves {_in_words(eager[name])}, the compiled call nothing"
        elif name not in eager:
            yield name, f"{name}: eager leaves nothing, the compiled call {_in_words(compiled[name])}"
        elif text := difference(eager[name], compiled[name], copies):
            yield name, f"{name}: {text}"


def difference(eager: Any, compiled: Any, copies: Copies) -> str:
    """How ``compiled`` is not ``eager``; "" if nothing differs."""
    if isinstance(eager, Tensor) and isinstance(compiled, Tensor):
        return _of_identity(eager, compiled, copies) or of_tensors(eager, compiled) or _of_versions(compiled, copies)
    if is_address(eager) and is_address(compiled):
        return ""
    if isinstance(eager, _PLAIN) or isinstance(compiled, _PLAIN):
        return "" if same_bits(eager, compiled) else f"{_in_words(compiled)}, in eager {_in_words(eager)}"
    return _of_state(eager, compiled)


def irreproducible(eager: dict[str, Any], again: dict[str, Any], names: Iterable[str] | None = None) -> set[str]:
    """The names, of all or of these, of what eager itself did not get twice: the time, say."""
    names = {*eager, *again} if names is None else names
    return {name for name in names if name not in eager or name not in again or not _is_alike(eager[name], again[name])}


def kept_values(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Of these names the values that are there, tensors as copies."""
    present = {name: values[name] for name in names if name in values}
    return {name: with_history(value) if isinstance(value, Tensor) else value for name, value in present.items()}


def _is_alike(eager: Any, again: Any) -> bool:
    if isinstance(eager, Tensor) and isinstance(again, Tensor):
        return not of_tensors(eager, again)
    return not (isinstance(eager, _PLAIN) or isinstance(again, _PLAIN)) or same_bits(eager, again)


def of_tensors(eager: Tensor, compiled: Tensor) -> str:
    """The first trait that differs, or the first element."""
    mine, theirs = traits(compiled), traits(eager)
    for trait, value in theirs.items():
        if mine.get(trait) != value:
            return f"{trait} is {mine.get(trait)}, in eager {value}"
    return "" if same_bits(eager.detach(), compiled.detach()) else _first_element(eager.detach(), compiled.detach())


def traits(tensor: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {
        "class": type(tensor).__name__,
        "dtype": tensor.dtype,
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "is_conj": tensor.is_conj(),
        "is_neg": tensor.is_neg(),
    }
    if not tensor.is_nested:
        found["shape"] = tuple(tensor.shape)
    if tensor.layout is torch.strided and not tensor.is_nested:
        found |= {"stride": tensor.stride(), "offset": tensor.storage_offset()}
    return found


def _of_identity(eager: Tensor, compiled: Tensor, copies: Copies) -> str:
    original = copies.original(eager)
    if original is not None and original is not compiled:
        return "a tensor of its own, in eager the very tensor that came in"
    if original is None and eager is not compiled and copies.has(compiled):
        return "the very tensor that came in, in eager a tensor of its own"
    return ""


def _of_versions(compiled: Tensor, copies: Copies) -> str:
    writes = copies.num_writes(compiled)
    return "" if writes is None or writes[0] == writes[1] else f"written into {writes[0]} times, in eager {writes[1]}"


def _first_element(eager: Tensor, compiled: Tensor) -> str:
    if eager.is_nested or eager.layout is not torch.strided or eager.is_quantized:
        return "other values"
    wrong = [not same_bits(a, b) for a, b in zip(eager.reshape(-1), compiled.reshape(-1))]
    place = wrong.index(True)
    index = [int(number) for number in torch.unravel_index(torch.tensor(place), eager.shape)]
    a, b = eager.reshape(-1)[place], compiled.reshape(-1)[place]
    text = f"element {index} is {b.item()!r}, in eager {a.item()!r}"
    return f"{text}; {sum(wrong)} of {eager.numel()} differ" + _ulps(eager, compiled)


def _ulps(eager: Tensor, compiled: Tensor) -> str:
    if not eager.is_floating_point():
        return ""
    return f", by up to {steps_between(eager, compiled).max().item()} ulps"


def _of_state(eager: Any, compiled: Any) -> str:
    """Generators of random numbers, NumPy's arrays; anything else is not compared."""
    for read in (lambda v: v.get_state(), lambda v: v.getstate(), lambda v: v.bit_generator.state, lambda v: v.tobytes()):
        try:
            mine, theirs = read(compiled), read(eager)
        except (AttributeError, TypeError):
            continue
        return "" if _same_state(mine, theirs) else "another state than eager's"
    return ""


def _same_state(mine: Any, theirs: Any) -> bool:
    return same_bits(mine, theirs) if isinstance(mine, Tensor) else repr(mine) == repr(theirs)


def _in_words(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{[] if value.is_nested else list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
