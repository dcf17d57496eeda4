"""Saved-tensors hooks of which all that can be told is what they make of a tensor: they may be called as if by eager.

    is_pure: hook -> bool

Inside of a region a tensor that is packed has eager's values and layout, at the moment at which eager packs it. Its node, what
it is a view of and its version are not eager's, nor is what Python around it did meanwhile, which Dynamo has wait for the
region's end. So a hook is compiled around if its code asks for none of these: if it reads nothing but its argument, modules,
and functions of this kind, and names only what is listed here.
"""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

_OF_TENSORS = frozenset((
    "detach", "clone", "data", "to", "cpu", "cuda", "double", "float", "half", "bfloat16", "int", "long", "short", "bool",
    "numpy", "copy", "astype", "contiguous", "dtype", "device", "shape", "size", "stride", "dim", "ndim", "numel", "itemsize",
    "element_size", "nbytes", "requires_grad", "is_floating_point", "is_complex", "is_contiguous", "is_cuda", "is_cpu",
    "layout", "strided", "abs", "neg", "sign", "mul", "add", "sub", "div", "sum", "mean", "amax", "amin", "max", "min", "round",
    "floor", "ceil", "clamp", "trunc", "square", "sqrt", "view", "reshape", "flatten", "unsqueeze", "squeeze", "expand",
    "transpose", "t", "T", "mT", "all", "any", "item", "tolist", "isnan", "isfinite", "count_nonzero", "float16", "float32",
    "float64", "int8", "int16", "int32", "int64", "uint8", "float8_e4m3fn", "float8_e5m2", "from_numpy", "as_tensor", "tensor",
    "zeros_like", "empty_like", "full_like", "Tensor", "nn", "Parameter", "no_grad", "quantize_per_tensor", "dequantize",
    "int_repr", "qint8", "quint8", "where", "copysign", "nan_to_num",
))  # fmt: skip
_BUILTINS = frozenset(("len", "isinstance", "tuple", "list", "int", "float", "bool", "min", "max", "abs", "sum", "str"))
_MODULES = (torch, torch.nn, np)
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)
_NOT_PURE = ("STORE_", "DELETE_", "IMPORT_", "INPLACE_", "YIELD_", "RETURN_GENERATOR", "MAKE_FUNCTION", "LOAD_BUILD_CLASS")
_LOCAL = ("STORE_FAST", "DELETE_FAST")
_MOST_CALLS = 4  # of functions within functions
_ON_CPU = "torch.autograd.graph", "save_on_cpu."  # torch's own only copy


def is_pure(hook: Any) -> bool:
    """See the module's docstring."""
    module, name = getattr(hook, "__module__", ""), getattr(hook, "__qualname__", "")
    return (module == _ON_CPU[0] and name.startswith(_ON_CPU[1])) or _is_pure(hook, _MOST_CALLS)


def _is_pure(function: Any, most_calls: int) -> bool:
    if isinstance(function, types.MethodDescriptorType | types.BuiltinFunctionType):
        owner = getattr(function, "__self__", None)
        return function.__name__ in _OF_TENSORS and (owner is None or isinstance(owner, type | types.ModuleType))
    if not isinstance(function, types.FunctionType) or most_calls == 0:
        return False
    reads = _reads_of(function.__code__)
    if reads is None or not all(isinstance(value, _PLAIN) for value in _defaults(function)):
        return False
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    try:
        values = [cells[name].cell_contents if name in cells else _global(function, name) for name in reads]
    except (KeyError, ValueError):  # not there (yet): the hook raises
        return False
    return all(_may_be_read(value, most_calls) for value in values)


def _defaults(function: types.FunctionType) -> Iterable[Any]:
    return (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


def _global(function: types.FunctionType, name: str) -> Any:
    return function.__globals__[name] if name in function.__globals__ else vars(builtins)[name]


def _may_be_read(value: Any, most_calls: int) -> bool:
    """A number or a string may be changed by what is compiled, which would show too late."""
    if any(value is vars(builtins)[name] for name in _BUILTINS):
        return True
    return (
        isinstance(value, torch.dtype | torch.device)
        or any(value is module for module in _MODULES)
        or _is_pure(value, most_calls - 1)
    )


@functools.lru_cache(maxsize=256)
def _reads_of(code: types.CodeType) -> frozenset[str] | None:
    """The names that the code reads besides its own; None if it changes something, or names what is not listed."""
    reads: set[str] = set()
    for call in dis.get_instructions(code):
        if call.opname.startswith(_NOT_PURE) and not call.opname.startswith(_LOCAL):
            return None
        if call.opname == "BINARY_OP" and call.argrepr.endswith(("=", "@")):
            return None
        if call.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_CLASSDEREF"):
            reads.add(call.argval)
        elif call.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER")) and call.argval not in _OF_TENSORS:
            return None
    return frozenset(reads)
