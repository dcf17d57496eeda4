"""What Dynamo is not to look into, and what runs as it is, between two graphs: NumPy, TorchScript, unusual tensors.

Dynamo puts torch's operators in the place of NumPy's functions, and inlines the Python that a TorchScript function was made
from. Both are other programs: they draw from another generator, and add up in another order. Here such a value is handed on
as it is, and whatever asks anything of it but its type and identity ends the graph.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, cast

import numpy
import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, CallMethodItemSource, LocalSource
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.misc import GetAttrVariable, NumpyVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._guards import Source

from gradc.torch_private.dynamo_names import GETATTR
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.tensor_methods import tensor_method
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.subclasses import runs_code_of_its_own
from gradc.torch_private.weaver import around, before, instead


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of value that stays closed: its types, and what a graph break at one says."""

    types: tuple[type, ...]
    name: str
    explanation: str

    def end_graph(self, context: str) -> NoReturn:
        end_graph(self.name, self.explanation, context)


NUMPY = Kind(
    (numpy.ndarray, numpy.generic, numpy.finfo, numpy.iinfo),
    "NumPy",
    "gradc calls NumPy itself: torch's operators round otherwise, and draw from torch's generator.",
)
TORCHSCRIPT = Kind(
    (torch.jit.ScriptFunction, torch.jit.ScriptModule),
    "TorchScript",
    "gradc runs what TorchScript compiled as eager does: the Python that it was made from is another program.",
)
RANDOM = Kind(
    (random.Random,),
    "generator of Python's",
    "gradc draws from random.Random as eager does: Dynamo would draw from a copy of it.",
)
BOUNDED = Kind(
    (collections.deque,),
    "deque with maxlen",
    "gradc leaves a deque that throws out its oldest to Python: Dynamo takes it for one without end.",
)
SUBCLASS = Kind(
    (torch.Tensor,),
    "tensor subclass",
    "gradc leaves tensors whose class has a __torch_function__ or __torch_dispatch__ of its own to Python, which calls it.",
)

SPARSE = Kind(
    (torch.Tensor,),
    "sparse tensor",
    "gradc leaves calls with sparse tensors to Python; what comes before and after is compiled.",
)


class OpaqueVariable(VariableTracker):
    """A value of which Dynamo knows the type and where it came from. Every method that would look into it ends the graph.

    Its own methods are known by name, so that the graph ends where one is called. A number goes into calls of torch as
    Python's own: torch makes the same of both, but for bool and complex.
    """

    def __init__(self, value: Any, kind: Kind, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.value = value
        self.kind = kind

    def python_type(self) -> type:
        return type(self.value)

    def getattr(self, tx: Any, name: str) -> VariableTracker:
        """``x.name``."""
        if not callable(getattr(self.value, name, None)):
            self.kind.end_graph(f"{type(self.value).__name__}.{name}")
        return GetAttrVariable(self, name)

    def as_proxy(self) -> Any:
        if type(self.value) not in _NUMBERS:
            self.kind.end_graph(f"{type(self.value).__name__} as an argument")
        if isinstance(self.source, LocalSource):  # a local one tends to be another at each call
            return _number_of(self.value, self.source).as_proxy()
        install_guard(self.make_guard(GuardBuilder.EQUALS_MATCH))
        return self.value.item()


def _ends_the_graph(name: str) -> Callable[..., NoReturn]:
    def method(self: OpaqueVariable, *_: Any, **__: Any) -> NoReturn:
        self.kind.end_graph(f"{type(self.value).__name__}: {name}")

    return method


_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
_NUMBERS = {numpy.dtype(code).type for code in "bhilqBHILQefd"}
_QUESTIONS = {
    "call_function",
    "call_method",
    "call_obj_hasattr",
    "const_getattr",
    "mp_length",
    "next_variable",
    "sq_contains",
    "sq_length",
    "unpack_var_sequence",
}
for _name in vars(VariableTracker):
    if _name in _QUESTIONS or _name.endswith("_impl"):
        setattr(OpaqueVariable, _name, _ends_the_graph(_name))
setattr(OpaqueVariable, GETATTR, OpaqueVariable.getattr)


def leave_closed() -> Patch:
    """Hand on arrays, TorchScript and unusual tensors as they are, and end the graph where they are called.

    The functions of NumPy have a setting of Dynamo's for this, ``trace_numpy``; it says nothing of arrays.
    """
    return Patch(
        "leave_closed",
        "Dynamo puts other programs in the place of NumPy's functions, of TorchScript's and of what a tensor's class does.",
        (
            around(VariableBuilder, "_wrap", _wrap),
            before(NumpyVariable, "call_function", _call),
            before(TorchInGraphFunctionVariable, "call_function", _torch),
            *tensor_method(instead, "__array__", _array),
        ),
    )


def _wrap(original: Method, self: Any, value: Any) -> Any:
    kind = _kind_of(value)
    if kind is None:
        return original(self, value)
    self.install_guards(GuardBuilder.TYPE_MATCH)
    if kind is SPARSE:
        install_guard(AttrSource(self.source, "layout").make_guard(GuardBuilder.ID_MATCH))
    return OpaqueVariable(value, kind, source=self.source)


def _call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    NUMPY.end_graph(getattr(self.value, "__name__", str(self.value)))


def _array(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    """None: as if there were no method."""
    NUMPY.end_graph("Tensor.__array__")


def _torch(self: Any, tx: Any, args: Any, kwargs: Any) -> None:
    """Of torch's functions some would tell of a closed tensor that it is none."""
    for value in _leaves([*args, *kwargs.values()]):
        if isinstance(value, OpaqueVariable) and value.kind in (SUBCLASS, SPARSE):
            value.kind.end_graph(f"{type(value.value).__name__} as an argument")


def _number_of(value: Any, source: Source) -> VariableTracker:
    """The Python number that a local number of NumPy's is."""
    tx = InstructionTranslator.current_tx()
    return cast(VariableTracker, VariableBuilder(tx, CallMethodItemSource(source))(value.item()).realize())


def _leaves(variables: Sequence[Any]) -> Iterator[Any]:
    """Arguments, and what is in a list or tuple among them."""
    for variable in map(VariableTracker.realize, variables):
        yield from map(VariableTracker.realize, variable.items) if isinstance(variable, BaseListVariable) else (variable,)


def _kind_of(value: Any) -> Kind | None:
    if isinstance(value, torch.Tensor):
        if runs_code_of_its_own(value):
            return SUBCLASS
        return SPARSE if value.layout in _SPARSE else None
    for kind in (NUMPY, TORCHSCRIPT, RANDOM):
        if isinstance(value, kind.types):
            return kind
    return BOUNDED if isinstance(value, collections.deque) and value.maxlen is not None else None
