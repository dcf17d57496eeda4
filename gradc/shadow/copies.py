"""Copies of what a call may change in place, for eager to work on: tensors, arrays, generators of random numbers.

    Copies.of: value -> its copy; a tuple with copies in it; or the value itself        Copies.original: copy -> value

What shared memory still does. A tensor with a history is copied with a leaf of its own behind it.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradc.bits import same_bits
from gradc.shadow.reachable_state import KINDS, UnverifiableError, is_stateful, post_accumulate_hooks_of
from gradc.torch_private.autograd import is_cut_off, set_version, storage_key
from gradc.torch_private.fakes import is_fake
from gradc.torch_private.reexecution import with_lazy_bits_of, without_lazy_bits
from gradc.torch_private.transforms import is_in_transform


@dataclasses.dataclass(frozen=True)
class _Pair:
    """A value and its copy. ``leaf``: of a tensor that requires a gradient, what its gradient is asked for."""

    value: Any
    copy: Any
    leaf: Tensor | None
    version: int
    copied_version: int
    grad: Tensor | None


@dataclasses.dataclass(frozen=True)
class _Memory:
    storage: Any
    copied: Any
    before: Any


class Copies:
    """Made as they are asked for. ``restore`` gives the originals the bits, versions and gradients that they had then."""

    def __init__(self) -> None:
        self._pairs: dict[int, _Pair] = {}
        self._originals: dict[int, Any] = {}
        self._memory: dict[int, _Memory] = {}
        self._num_tensors: collections.Counter[int] = collections.Counter()
        self._num_trained: collections.Counter[int] = collections.Counter()

    def of(self, value: Any) -> Any:
        self._add_all(value)
        return self.known(value)

    def known(self, value: Any) -> Any:
        """``of``, but what was not copied stays as it is. The identity of what was copied is that of its copy."""
        if isinstance(value, tuple):
            parts = [self.known(part) for part in value]
            return value if all(a is b for a, b in zip(parts, value, strict=True)) else _tuple_like(value, parts)
        if type(value) is int and value in self._pairs:
            return id(self._pairs[value].copy)
        pair = self._pairs.get(id(value))
        return value if pair is None else pair.copy

    def original(self, copied: Any) -> Any:
        """What ``copied`` is the copy of; None for anything else."""
        return self._originals.get(id(copied))

    def has(self, value: Any) -> bool:
        """True for what was copied."""
        return id(value) in self._pairs

    def leaf_of(self, tensor: Tensor) -> Tensor | None:
        pair = self._pairs.get(id(tensor))
        return None if pair is None else pair.leaf

    def tensors(self) -> list[Tensor]:
        return [pair.value for pair in self._pairs.values() if isinstance(pair.value, Tensor)]

    def num_writes(self, tensor: Tensor) -> tuple[int, int] | None:
        """How often the original and its copy were written into since they were copied."""
        pair = self._pairs.get(id(tensor))
        if pair is None or tensor.is_inference() or self._is_shared(tensor):
            return None
        return tensor._version - pair.version, pair.copy._version - pair.copied_version

    def pairs(self) -> Iterator[tuple[Tensor, Tensor, bool]]:
        """Originals and copies, and whether each was written into as often as the other, as far as autograd knows.

        Without what was in ``.grad`` before the call: a backward adds to it, and eager's is asked for gradients only.
        """
        grads = {id(pair.grad) for pair in self._pairs.values()}
        for pair in self._pairs.values():
            if isinstance(pair.value, Tensor) and id(pair.value) not in grads and (writes := self.num_writes(pair.value)):
                yield pair.value, pair.copy, operator.eq(*writes)

    def release_hooks(self) -> None:
        """Gradients are compared as they leave the call: what hooks on inputs do then, its own ones too, is no part of it."""
        for pair in self._pairs.values():
            if isinstance(pair.value, Tensor):
                (pair.copy._backward_hooks or {}).clear()

    def restore(self) -> None:
        for memory in self._memory.values():
            if not _same_bytes(memory.storage, memory.before):
                memory.storage.copy_(memory.before)
        for pair in self._pairs.values():
            if isinstance(pair.value, Tensor) and not pair.value.is_inference():
                if pair.value.is_leaf:
                    pair.value.requires_grad_(pair.leaf is not None)
                    pair.value.grad = pair.grad
                set_version(pair.value, pair.version)

    def _add_all(self, value: Any) -> None:
        if isinstance(value, tuple):
            for part in value:
                self._add_all(part)
        elif is_stateful(value) and id(value) not in self._pairs:
            self._add(value)

    def _add(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._add_tensor(value)
            return
        made = value.clone_state() if isinstance(value, torch.Generator) else _copied(value)
        self._keep(_Pair(value, made, None, 0, 0, None))

    def _keep(self, pair: _Pair) -> None:
        self._pairs[id(pair.value)] = pair
        self._originals[id(pair.copy)] = pair.value

    def _add_tensor(self, tensor: Tensor) -> None:
        _refuse(tensor)
        with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
            plain = self._without_history(tensor)
        made, leaf = plain, None
        if tensor.requires_grad and tensor.is_leaf:
            made = leaf = plain.requires_grad_()
        elif tensor.requires_grad:
            leaf = plain.requires_grad_()
            with torch.enable_grad():
                made = _Given.apply(leaf)
        version = 0 if tensor.is_inference() else tensor._version
        copied_version = 0 if tensor.is_inference() else made._version
        grad = tensor.grad if tensor.is_leaf else None
        self._keep(_Pair(tensor, made, leaf, version, copied_version, grad))
        if tensor.is_leaf and tensor.grad_dtype != made.grad_dtype:
            made.grad_dtype = tensor.grad_dtype
        if grad is not None:
            made.grad = self.of(grad)
        if vars(tensor):
            vars(made).update(vars(tensor))
        self._copy_hooks(tensor, made)

    def _is_shared(self, tensor: Tensor) -> bool:
        """True if another tensor lies on the same memory: then views count together, and their copies each for itself."""
        return _has_storage(tensor) and self._num_tensors[storage_key(tensor)] > 1

    def _without_history(self, tensor: Tensor) -> Tensor:
        plain = without_lazy_bits(tensor.detach())
        made = with_lazy_bits_of(tensor, self._strided(plain, tensor.requires_grad) if _has_storage(plain) else plain.clone())
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=False)
        return torch.nn.Buffer(made, persistent=tensor.persistent) if isinstance(tensor, torch.nn.Buffer) else made

    def _strided(self, tensor: Tensor, is_trained: bool) -> Tensor:
        key = storage_key(tensor)
        if key not in self._memory:
            storage = tensor.untyped_storage()
            self._memory[key] = _Memory(storage, storage.clone(), storage.clone())
        self._num_tensors[key] += 1
        self._num_trained[key] += is_trained
        if self._num_trained[key] > 1:
            raise UnverifiableError("arguments that share memory, with gradients")
        return like(tensor, self._memory[key].copied)

    def _copy_hooks(self, tensor: Tensor, made: Tensor) -> None:
        if not tensor.is_leaf:
            return
        for hook in (tensor._backward_hooks or {}).values():
            made.register_hook(hook)
        for hook in post_accumulate_hooks_of(tensor):
            made.register_post_accumulate_grad_hook(hook)


def like(tensor: Tensor, storage: Any) -> Tensor:
    """A tensor of its own on ``storage``, laid out as ``tensor``; no view, as far as autograd knows."""
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


class _Given(torch.autograd.Function):
    """A tensor as it is, with a history: what eager may write into, where it may not into a leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        if not _has_storage(leaf):
            return leaf.clone()
        return with_lazy_bits_of(leaf, like(without_lazy_bits(leaf), leaf.untyped_storage()))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def is_of_copies(node: Any) -> bool:
    """True for the node of a copy that has a history."""
    return type(node) is _Given._backward_cls


def _refuse(tensor: Tensor) -> None:
    if type(tensor) not in KINDS or is_fake(tensor):
        raise UnverifiableError("a tensor subclass")
    if is_in_transform(tensor):
        raise UnverifiableError("a function transform")
    if tensor.requires_grad and not tensor.is_leaf and (tensor.is_conj() or tensor.is_neg()):
        raise UnverifiableError("an argument that is still to be conjugated")
    if is_cut_off(tensor):
        raise UnverifiableError("an argument that is a view made under no_grad")


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested and not tensor.is_meta


def cloned(tensor: Tensor) -> Tensor:
    """A copy without a history, with the strides that the tensor has: an expanded one stays expanded."""
    plain = tensor.detach()
    made = plain.clone()
    if _has_storage(plain) and made.stride() != plain.stride():
        return with_lazy_bits_of(plain, like(without_lazy_bits(plain), plain.untyped_storage().clone()))
    return made


def with_history(tensor: Tensor) -> Tensor:
    """``cloned``, with a history where the tensor has one; a leaf that requires a gradient for such, as autocast asks."""
    made = cloned(tensor)
    if not tensor.requires_grad:
        return made
    made.requires_grad_()
    if tensor.is_leaf:
        return made
    with torch.enable_grad():
        given: Tensor = _Given.apply(made)
    return given


def _same_bytes(a: Any, b: Any) -> bool:
    as_bytes = lambda storage: torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return a.nbytes() == b.nbytes() and same_bits(as_bytes(a), as_bytes(b))


def _copied(value: Any) -> Any:
    try:
        return copy.copy(value) if hasattr(value, "__next__") else copy.deepcopy(value)
    except Exception as error:
        raise UnverifiableError(f"a {type(value).__name__} that cannot be copied") from error


def _tuple_like(value: tuple[Any, ...], parts: list[Any]) -> Any:
    if hasattr(value, "_make"):
        return value._make(parts)
    return tuple(parts) if type(value) is tuple else value
