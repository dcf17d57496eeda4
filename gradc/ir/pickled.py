"""A Program as bytes, for another process.

pickled: Program -> bytes        unpickled: bytes -> Program
"""

from __future__ import annotations

import io
import pickle
import time
from typing import Any

import torch

from gradc.ir.program import Program

_OVERLOAD = type(torch.ops.aten.mm.default)
_SLICE, _PAUSE = 1e-4, 1e-3  # seconds: of work, and for other threads, which Python would let wait for 5 ms


def pickled(program: Program) -> bytes:
    """See the module's docstring. Of threads that run meanwhile, none waits for long: this takes some ms for hundreds of calls.

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

    _since = 0.0

    def reducer_override(self, value: Any) -> Any:
        if time.perf_counter() - self._since > _SLICE:
            time.sleep(_PAUSE)
            self._since = time.perf_counter()
        if isinstance(value, _OVERLOAD):
            namespace, name = value._schema.name.split("::")
            return _op, (namespace, name, value._schema.overload_name or "default")
        return NotImplemented


def _op(namespace: str, name: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)
