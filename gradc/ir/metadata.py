"""What a tensor or a number of torch's is to a Program.

tensor_meta:     tensor -> TensorMeta                 symbolic_number: SymInt and the like -> Sym
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from gradc.ir.values import Sym, TensorMeta


def tensor_meta(tensor: torch.Tensor) -> TensorMeta | None:
    """Metadata of a strided tensor; None for another layout."""
    if tensor.layout is not torch.strided:
        return None
    return TensorMeta(
        tensor.dtype,
        tuple(symbolic_number(size) for size in tensor.shape),
        tuple(symbolic_number(size) for size in tensor.stride()),
        symbolic_number(tensor.storage_offset()),
        tensor.device,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def symbolic_number(value: Any) -> Any:
    """A symbolic number as Sym, or as a plain one where its value is fixed."""
    if type(value) is not int and isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        expr = value.node.expr
        if expr.is_number or expr in (sympy.true, sympy.false):
            return value.node.pytype(expr)
        return Sym(expr, value.node.pytype)
    return value
