"""How a kernel really lays its results out, and in which dtype, where fake tensors may be wrong about it.

    corrected:        (op, args, kwargs, fake result) -> the result, fake, with the strides and dtype that the kernel gives
    has_free_strides: metadata -> whether it has strides that no element depends on, unlike a fresh tensor's

Fake tensors get their strides from formulas written apart from the kernels, and some differ: a product of a transposed and an
expanded bfloat16 tensor, dimensions of size 1. Only layouts that are not contiguous are in doubt, and dtypes where arguments
are of several: the mean that a layer norm of bfloat16 with float32 weights saves is float32. There the kernel itself is asked,
once for each set of arguments, by a call on zeros.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import sympy
import torch

from gradc.errors import UnsupportedError
from gradc.ir.ops import ALL_APART, CERTAIN_LAYOUT, NO_ZEROS, is_random
from gradc.ir.values import Sym, TensorMeta, leaves, map_leaves
from gradc.torch_private.fakes import is_fake
from gradc.torch_private.modes import without_dispatch_modes

MAX_ELEMENTS = 1 << 24  # of the arguments together; beyond, the question costs more than the doubt is worth

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # sizes, strides


class _Zeros:
    """Stands in a hashable tree of arguments for a tensor of zeros."""

    def __init__(self, tensor: torch.Tensor) -> None:
        numbers = (_hint(tensor.size()), _hint(tensor.stride()))
        self.key = (tensor.dtype, tensor.device, numbers)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Zeros) and self.key == other.key

    def make(self) -> torch.Tensor:
        dtype, device, (size, stride) = self.key
        return torch.empty_strided(size, stride, dtype=dtype, device=device).zero_()


def corrected(op: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """See the module's docstring.

    Raises:
        UnsupportedError: if strides of symbolic sizes would have to be corrected.
    """
    result = _apart(result) if op in ALL_APART else result
    made = [leaf for leaf in leaves(result) if isinstance(leaf, torch.Tensor)]
    given = [leaf for leaf in (*leaves(args), *leaves(kwargs)) if isinstance(leaf, torch.Tensor)]
    if op in CERTAIN_LAYOUT or op in NO_ZEROS or not _is_in_doubt(op, given, made):
        return result
    layouts = _ask(op, _frozen(args), _frozen(kwargs), torch.get_default_dtype())
    if layouts is None or len(layouts) != len(made):
        return result
    wanted = iter(layouts)
    return map_leaves(lambda leaf: _laid_out(op, leaf, next(wanted)) if isinstance(leaf, torch.Tensor) else leaf, result)


def _apart(results: Any) -> Any:
    """With a tensor of its own for each result."""
    before: set[int] = set()

    def one(leaf: Any) -> Any:
        is_first = id(leaf) not in before
        before.add(id(leaf))
        return leaf if is_first else torch.empty_like(leaf)

    return map_leaves(one, results)


def _is_in_doubt(op: Any, given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    tensors = [*given, *made]
    if not given or not made or _returns_what_it_writes(op) or not all(_is_plain_fake(tensor) for tensor in tensors):
        return False
    has_several_dtypes = len({tensor.dtype for tensor in given if tensor.dtype.is_floating_point}) > 1
    if sum(_count(tensor) for tensor in given) > MAX_ELEMENTS:
        return has_several_dtypes and torch.Tag.pointwise not in op.tags  # whose dtype is the one that all of them promote to
    return has_several_dtypes or not all(_is_usual(_hint(tensor.size()), _hint(tensor.stride())) for tensor in tensors)


def _returns_what_it_writes(op: Any) -> bool:
    """True for an op in place. ``rrelu_with_noise`` writes into an argument, too, but makes its result."""
    return op._schema.is_mutable and all(result.alias_info is not None for result in op._schema.returns)


def _is_plain_fake(tensor: torch.Tensor) -> bool:
    return is_fake(tensor) and tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()


@functools.lru_cache(maxsize=4096)
def _ask(op: Any, args: Any, kwargs: Any, default_dtype: torch.dtype) -> tuple[Layout, ...] | None:
    """The layouts of what the kernel returns, under this default dtype; None where it cannot be asked with zeros."""
    with without_dispatch_modes(), torch.no_grad(), torch.random.fork_rng([]) if is_random(op) else contextlib.nullcontext():
        try:
            result = op(*_thawed(args), **dict(_thawed(kwargs)))
        except Exception:  # zeros are no fit argument: a singular matrix, say
            return None
    return tuple((tuple(leaf.size()), leaf.stride(), leaf.dtype) for leaf in leaves(result) if isinstance(leaf, torch.Tensor))


def _laid_out(op: Any, fake: torch.Tensor, wanted: Layout) -> torch.Tensor:
    size, stride, dtype = wanted
    if _hint(fake.size()) != size:
        return fake
    if _hint(fake.stride()) == stride:
        return fake if fake.dtype == dtype else torch.empty_strided(fake.size(), fake.stride(), dtype=dtype, device=fake.device)
    if any(isinstance(number, torch.SymInt) for number in (*fake.size(), *fake.stride())):
        stride = _symbolic_stride(fake, stride)
        if not stride:
            raise UnsupportedError("symbolic sizes of a tensor that its kernel lays out otherwise", str(op))
    if any(result.alias_info is not None for result in op._schema.returns):  # a view, or the argument itself
        return fake.as_strided(fake.size(), stride, fake.storage_offset())
    return torch.empty_strided(fake.size(), stride, dtype=dtype, device=fake.device)


def _symbolic_stride(fake: torch.Tensor, stride: tuple[int, ...]) -> tuple[Any, ...]:
    """``fake``'s strides, those of dimensions of size 1 as in ``stride``, as products of sizes; () if others differ.

    Such a dimension stands among the others, in the order of memory: its stride is that of one, or what lies behind the last.
    """
    taken = [d for d in range(fake.dim()) if not (isinstance(fake.size(d), int) and fake.size(d) == 1)]
    if any(_hint([fake.stride(d)])[0] != stride[d] for d in taken):
        return ()
    steps = [1, *(fake.stride(d) for d in taken), *(fake.stride(d) * fake.size(d) for d in taken)]
    known = {hint: {str(step): step for h, step in zip(_hint(steps), steps) if h == hint} for hint in stride}
    if any(len(choices) != 1 for choices in known.values()):
        return ()
    return tuple(fake.stride(d) if d in taken else next(iter(known[stride[d]].values())) for d in range(fake.dim()))


def _is_usual(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """True if the strides are those of a fresh, contiguous tensor."""
    usual = 1
    for length, step in zip(reversed(size), reversed(stride), strict=True):
        if step != usual:
            return False
        usual *= max(length, 1)
    return True


def _count(tensor: torch.Tensor) -> int:
    extent = 1
    for length, step in zip(_hint(tensor.size()), _hint(tensor.stride()), strict=True):
        extent += (length - 1) * step
    return extent


def _hint(numbers: Any) -> tuple[int, ...]:
    return tuple(number.node.hint if isinstance(number, torch.SymInt) else number for number in numbers)


def _frozen(tree: Any) -> Any:
    """``tree`` as something hashable, with zeros for tensors, and hints for symbols."""
    if isinstance(tree, torch.Tensor):
        return _Zeros(tree)
    if isinstance(tree, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return tree.node.hint
    if isinstance(tree, dict):
        return tuple((key, _frozen(value)) for key, value in tree.items())
    if isinstance(tree, (tuple, list)):
        return tuple(_frozen(item) for item in tree)
    return tree


def _thawed(tree: Any) -> Any:
    if isinstance(tree, _Zeros):
        return tree.make()
    return [_thawed(item) for item in tree] if isinstance(tree, tuple) else tree


def has_free_strides(meta: TensorMeta | None) -> bool:
    """True if a stride that no element depends on is another than in a fresh, contiguous tensor.

    Those are the strides of dimensions of size 1, and all those of an empty tensor.
    """
    if meta is None:
        return False
    usual = sympy.Integer(1)
    is_empty = 0 in meta.shape
    for size, stride in zip(reversed(meta.shape), reversed(meta.stride), strict=True):
        if (size == 1 or is_empty) and _expr(stride) != usual:
            return True
        usual *= _expr(size) if size != 0 else 1
    return False


def _expr(value: int | Sym) -> sympy.Basic:
    return value.expr if isinstance(value, Sym) else sympy.Integer(value)
