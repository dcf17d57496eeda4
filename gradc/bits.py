"""Are two tensors the same, bit for bit? The one answer, for ``gradc.check``, every test, sweep and benchmark.

    same_bits: (value, value) -> bool

Of tensors: dtype, shape, layout and every bit, so -0.0 is not 0.0. The one exception is NaN: any NaN is like any other, alone
or as a part of a complex number, for a sum of two NaNs is either of them, and ATen itself takes one in the vectorised part of
a tensor and the other in the rest. How the bits lie in memory (strides, offset, lazy conjugation) is another question.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_COMPRESSED = {
    torch.sparse_csr: (Tensor.crow_indices, Tensor.col_indices),
    torch.sparse_bsr: (Tensor.crow_indices, Tensor.col_indices),
    torch.sparse_csc: (Tensor.ccol_indices, Tensor.row_indices),
    torch.sparse_bsc: (Tensor.ccol_indices, Tensor.row_indices),
}


def same_bits(a: Any, b: Any) -> bool:
    """Tensors and numbers by their bits, lists and tuples by their elements, anything else by class and ==."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            return _same_tensor(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same_bits, a, b))
    if isinstance(a, float | complex):
        return repr(a) == repr(b)  # exact, tells -0.0 from 0.0, and is one for all NaNs
    return bool(a == b)


def _same_tensor(a: Tensor, b: Tensor) -> bool:
    if is_traceable_wrapper_subclass(a) or is_traceable_wrapper_subclass(b):
        return type(a) is type(b) and _same_parts(a, b, a.__tensor_flatten__()[0])
    if (a.dtype, a.device, a.layout, a.is_nested) != (b.dtype, b.device, b.layout, b.is_nested):
        return False
    if a.is_nested:
        return _all_same(a.unbind(), b.unbind())
    if a.shape != b.shape:
        return False
    if a.layout is torch.strided and not a.is_quantized:
        return a.is_meta or torch.equal(_bytes(a), _bytes(b)) or _same_but_for_nans(a, b)
    return _all_same(_parts(a), _parts(b))


def _same_parts(a: Any, b: Any, names: list[str]) -> bool:
    return all(same_bits(getattr(a, name), getattr(b, name)) for name in names)


def _all_same(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(same_bits, a, b))


def _parts(tensor: Tensor) -> list[Any]:
    """The strided tensors and the numbers that a tensor of another layout consists of."""
    if tensor.is_quantized:
        return [tensor.int_repr(), *_scale(tensor)]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in _COMPRESSED:
        return [*(part(tensor) for part in _COMPRESSED[tensor.layout]), tensor.values()]
    return [tensor.to_dense()]


def _scale(tensor: Tensor) -> list[Any]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return [tensor.q_scale(), tensor.q_zero_point()]
    return [tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points(), tensor.q_per_channel_axis()]


def _flat(tensor: Tensor) -> Tensor:
    """The numbers in a row, in memory of their own, conjugated and negated where that was still to be done."""
    return torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device).copy_(tensor.detach().reshape(-1))


def _bytes(tensor: Tensor) -> Tensor:
    return _flat(tensor).view(torch.uint8)


def _same_but_for_nans(a: Tensor, b: Tensor) -> bool:
    if not (a.is_floating_point() or a.is_complex()):
        return False
    a, b = (torch.view_as_real(_flat(x)) if x.is_complex() else _flat(x) for x in (a, b))
    is_nan = _is_nan(a)
    return torch.equal(is_nan, _is_nan(b)) and torch.equal(_bytes(a[~is_nan]), _bytes(b[~is_nan]))


def _is_nan(tensor: Tensor) -> Tensor:
    return (tensor.float() if tensor.dtype.itemsize == 1 else tensor).isnan()
