"""The operations of a step as they run, below autograd, in eager or compiled: what each read and made, and the user's line.

    with Recorder() as recorder: step()        recorder.calls: list of Call

The bits of what is read and made are kept as digests, which tell the same numbers from others, whatever the shape. Code that
was compiled runs compiled under the recorder, and shows the operations that it calls: all of aot_eager's, few of Inductor's.
Memory that nobody has written yet, as ``empty`` makes it, has no digest: it holds something else in each run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import linecache
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from gradc.ir.ops import UNINITIALIZED
from gradc.parity.differences import Stage, Value
from gradc.torch_private.autograd import current_autograd_node, is_inside_backward, next_sequence_nr, sequence_nr
from gradc.torch_private.fakes import is_fake

_MOST_BYTES = 1 << 29  # of copies of results; of what comes behind, the digests only
_DRAWS = ("dropout", "bernoulli", "rand", "normal", "uniform", "multinomial", "exponential", "geometric", "cauchy", "poisson")
_NOT_THE_USERS = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, os.path.dirname(__file__)))


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor that an operation read or made. ``digest``: "" if it has none, as a sparse tensor, or memory not yet written."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    digest: str

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclasses.dataclass(frozen=True)
class Call:
    """
    Attributes:
        op: "aten.mm", without the overload, and without the mark of an operation in place.
        settings: its arguments that are no tensors, in words.
        is_view: whether it only looks at what it read in another way.
        node: the autograd node that the engine ran then; "" in forward.
        where: the user's line; in backward, that of the forward operation whose gradient it is.
        has_autocast: whether autocast was on.
        values: copies of the results, if they were kept.
    """

    op: str
    settings: str
    is_view: bool
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    node: str
    where: str
    has_autocast: bool
    values: tuple[Value, ...]

    @property
    def is_backward(self) -> bool:
        return bool(self.node)

    @property
    def is_drawn(self) -> bool:
        """Whether it takes random numbers."""
        return any(word in self.op for word in _DRAWS) and "backward" not in self.op

    @property
    def phase(self) -> str:
        return "backward" if self.is_backward else "forward"


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._lines: dict[int, str] = {}  # of the forward operation that has made the autograd node of this number
        self._num_bytes = 0
        self._unwritten = set[StorageWeakRef]()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What torch.compile compiled runs compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What out= gives is written into, not read.
        inputs = {name: value for name, value in (kwargs or {}).items() if name != "out"}
        read, settings = _apart(pytree.tree_leaves((args, inputs)))
        if any(map(is_fake, read)):
            return func(*args, **(kwargs or {}))
        operands = tuple(map(self._operand, read))
        node, where = self._place()
        has_autocast = any(map(_has_autocast, read[:1]))
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        is_view = func.is_view or func._schema.name in _ALIASES
        self._note_writes(func, args, kwargs, made)
        results = tuple(map(self._operand, made))
        values = () if is_view or func in UNINITIALIZED else tuple(self._kept(made))
        op = func._schema.name.replace("::", ".").removesuffix("_")
        self.calls.append(Call(op, settings, is_view, operands, results, node, where, has_autocast, values))
        return result

    def _place(self) -> tuple[str, str]:
        node = current_autograd_node() if is_inside_backward() else None
        if node is not None:
            return node.name(), self._lines.get(sequence_nr(node), "") or users_line()
        where = users_line()
        self._lines.setdefault(next_sequence_nr() - 1, where)
        return "", where

    def _operand(self, tensor: Tensor) -> Operand:
        shape = () if tensor.is_nested else tuple(tensor.shape)
        return Operand(tensor.dtype, shape, "" if self._unwritten & _storages([tensor]) else digest(tensor))

    def _note_writes(self, func: Any, args: Any, kwargs: Any, made: list[Tensor]) -> None:
        if func in UNINITIALIZED:
            self._unwritten |= _storages(made)
        elif self._unwritten and func._schema.is_mutable:
            self._unwritten -= _storages(pytree.tree_leaves((args, kwargs)))

    def _kept(self, made: list[Tensor]) -> Iterator[Value]:
        for tensor in made:
            self._num_bytes += tensor.numel() * tensor.element_size()
            if self._num_bytes <= _MOST_BYTES:
                yield Value(tensor.detach().clone(), Stage.OUTPUT)  # without its traits, which below autograd are others


def _has_autocast(tensor: Tensor) -> bool:
    device = tensor.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _apart(leaves: list[Any]) -> tuple[list[Tensor], str]:
    """The tensors, and everything else in words."""
    settings = [repr(leaf) for leaf in leaves if not isinstance(leaf, Tensor | torch.Generator)]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)], ", ".join(settings)


_ALIASES = {"aten::detach", "aten::alias", "aten::_unsafe_view", "aten::_reshape_alias", "aten::lift_fresh"}


def digest(tensor: Any) -> str:
    """Equal for equal numbers in the same order, whatever the shape and the NaNs; "" for what has no memory of its own."""
    if not isinstance(tensor, Tensor) or type(tensor) not in (Tensor, torch.nn.Parameter):
        return ""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta or tensor.is_quantized:
        return ""
    with torch.no_grad():
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        if plain.is_floating_point() and plain.dtype.itemsize > 1:
            plain = plain.masked_fill(plain.isnan(), float("nan"))
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(data, digest_size=12, person=str(tensor.dtype)[6:22].encode()).hexdigest()


def _storages(leaves: list[Any]) -> set[StorageWeakRef]:
    """Held weakly, so that none is taken for another one at its address."""
    found = set[StorageWeakRef]()
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # sparse ones and wrappers have none
                found.add(StorageWeakRef(leaf.untyped_storage()))
    return found


def users_line() -> str:
    """ "train.py:12 in forward: return x @ w", of the innermost frame that is neither torch's nor gradc's."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((*_NOT_THE_USERS, "<")):
            line = linecache.getline(path, frame.f_lineno).strip()
            return f"{path}:{frame.f_lineno} in {frame.f_code.co_name}: {line}"
        frame = frame.f_back
    return ""
