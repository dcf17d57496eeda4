"""A Program as bytes, for another process.

pickled: Program -> bytes        unpickled: bytes -> Program
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from gradc.ir.program import Program

_OVERLOAD = type(torch.ops.aten.mm.default)


def pickled(program: Program) -> bytes:
    """See the module's docstring.

    Raises:
        pickle.PicklingError, TypeError, AttributeError: for what only this process has: an object of C++ among the arguments.
    """
    buffer = io.BytesIO()
    _Pickler(buffer).dump(program)
    return buffer.getvalue()


def unpickled(data: bytes) -> Program:
    """The same Program.

    Raises:
        AttributeError: for an op that is not defined here.
    """
    program: Program = pickle.loads(data)
    return program


class _Pickler(pickle.Pickler):
    """Ops go by their names: torch's objects for them cannot be pickled."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, _OVERLOAD):
            namespace, name = value._schema.name.split("::")
            return _op, (namespace, name, value._schema.overload_name or "default")
        return NotImplemented


def _op(namespace: str, name: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)
