"""What ``torch.distributions`` checks of values, in one graph: an op asks, in its place among the others, and raises.

    check_values_of_distributions: is_ours -> Patch

``if not torch._is_all_true(valid): raise ValueError(...)`` is a branch, where a graph of Dynamo's ends. Here the graph gets an
op of gradc's with the tensors of the distribution. Where the answer is no, the op makes a distribution of them and has torch
check it again: the error is torch's own.

Not so inside of a ``try``, and of distributions that hold other things than tensors, numbers, transforms and distributions.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import SkipFunctionVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import wrap_fx_proxy
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lists import BaseListVariable, SizeVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable, UserDefinedObjectVariable
from torch.distributions import Distribution, constraints
from torch.distributions.transforms import Transform
from torch.distributions.utils import lazy_property

from gradc.errors import InternalError
from gradc.torch_private.dynamo_names import GETATTR
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, instead

_library = torch.library.Library("gradc_checks", "DEF")
_library.define("require(Tensor is_valid, Tensor[] tensors, SymInt[] sizes, int number) -> ()")
_checks: list[_Check] = []

Made = Callable[[Sequence[torch.Tensor], Sequence[int]], Any]


@dataclasses.dataclass(frozen=True)
class _Check:
    """A check of torch's, to be made again: of a distribution, and of a sample unless it is the distribution's own."""

    distribution: Made
    sample: Made | None
    is_recording: bool

    def raise_error(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        with torch.set_grad_enabled(self.is_recording):
            distribution = self.distribution(tensors, sizes)
            if self.sample is None:
                Distribution.__init__(distribution, distribution._batch_shape, distribution._event_shape)
            else:
                distribution._validate_sample(self.sample(tensors, sizes))


def _require(is_valid: torch.Tensor, tensors: Sequence[torch.Tensor], sizes: Sequence[int], number: int) -> None:
    if is_valid:
        return
    if number >= len(_checks):  # a graph that another process wrote
        raise ValueError("a distribution has invalid values")
    try:
        _checks[number].raise_error(tensors, sizes)
    except ValueError as error:
        raise _with_names_of_nodes(error) from None
    raise InternalError("torch found invalid values in a distribution, but not when asked again")


_library.impl("require", _require, "CompositeExplicitAutograd")
_library.impl("require", lambda *_: None, "Meta")


def check_values_of_distributions() -> Patch:
    """See the module's docstring. Whether a constraint depends on other values is asked of its class, as torch does."""
    return Patch(
        "check_values_of_distributions",
        "What a distribution asks of its values is a branch, where graphs end: twice for each, and again for each log_prob.",
        (
            instead(TorchInGraphFunctionVariable._get_handlers(), torch._is_all_true, _check, may_be_missing=True),
            around(SkipFunctionVariable, "call_function", _skipped),
            around(UserDefinedClassVariable, GETATTR, _getattr),
        ),
    )


def _check(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    """None: as if there were no handler."""
    is_asked = tx.f_code in (Distribution.__init__.__code__, Distribution._validate_sample.__code__)
    return _checked(tx, *args) if is_asked else None


def _skipped(original: Method, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value is constraints.is_dependent and not kwargs:
        constraint = args[0].realize()
        if isinstance(constraint, UserDefinedObjectVariable):
            return ConstantVariable.create(issubclass(type(constraint.value), constraints._Dependent))
    return original(self, tx, args, kwargs)


def _getattr(original: Method, self: Any, tx: Any, name: str) -> Any:
    """A lazy property makes another object whenever its class is asked: the one in the class is as good a one."""
    if self.source and tx.f_code is Distribution.__init__.__code__:
        found = inspect.getattr_static(self.value, name, None)
        if isinstance(found, lazy_property):
            return VariableTracker.build(tx, found, self.get_source_by_walking_mro(tx, name))
    return original(self, tx, name)


def _checked(tx: Any, valid: VariableTracker) -> VariableTracker | None:
    """Put the check into the graph; None if something of the distribution could not be made again."""
    inputs, sample = _Inputs(tx), None
    distribution = inputs.taken(tx.symbolic_locals["self"])
    if tx.f_code is Distribution._validate_sample.__code__:
        sample = inputs.taken(tx.symbolic_locals["value"])
        if sample is None:
            return None
    if distribution is None or not isinstance(valid, TensorVariable):
        return None
    _checks.append(_Check(distribution, sample, torch.is_grad_enabled()))
    is_valid = tx.output.create_proxy("call_function", torch._is_all_true, (valid.as_proxy(),), {})
    wrap_fx_proxy(tx, is_valid)
    arguments = (is_valid, inputs.tensors, inputs.sizes, len(_checks) - 1)
    wrap_fx_proxy(tx, tx.output.create_proxy("call_function", torch.ops.gradc_checks.require.default, arguments, {}))
    return ConstantVariable.create(True)


class _Inputs:
    """Collects what an op is to be given, so that it can make a traced object again."""

    def __init__(self, tx: Any) -> None:
        self.tensors: list[Any] = []
        self.sizes: list[Any] = []
        self._tx = tx

    def taken(self, variable: VariableTracker) -> Made | None:
        """What makes the object of the op's tensors and sizes; None if that is not known."""
        match variable := variable.realize():
            case TensorVariable():
                self.tensors.append(variable.as_proxy())
                place, history = len(self.tensors) - 1, _History.of(self._tx, variable)
                return lambda tensors, _: history.given_to(tensors[place])
            case SymNodeVariable():
                self.sizes.append(variable.as_proxy())
                number = len(self.sizes) - 1
                return lambda _, sizes: sizes[number]
            case ConstantVariable():
                value = variable.as_python_constant()
                return lambda *_: value
            case BaseListVariable() if variable.python_type() in (list, tuple, torch.Size):
                items, kind = [self.taken(item) for item in variable.items], variable.python_type()
                if isinstance(variable, SizeVariable):
                    kind = torch.Size
                return None if None in items else lambda *of: kind([make(*of) for make in items if make is not None])
            case UserDefinedObjectVariable() if issubclass(type(variable.value), (Distribution, Transform)):
                return self._taken_object(variable)
        return None

    def _taken_object(self, variable: Any) -> Made | None:
        cls, names = type(variable.value), list(self._tx.output.side_effects.store_attr_mutations.get(variable, ()))
        if variable.source:
            install_guard(AttrSource(variable.source, "__dict__").make_guard(GuardBuilder.DICT_KEYS_MATCH))
            names = [*vars(variable.value), *(name for name in names if name not in vars(variable.value))]
        attributes = {name: self.taken(getattr(variable, GETATTR)(self._tx, name)) for name in names}
        if None in attributes.values():
            return None

        def make(*of: Any) -> Any:
            made = object.__new__(cls)
            vars(made).update({name: make(*of) for name, make in attributes.items() if make is not None})
            return made

        return make


_PRIVATE_CHARACTERS = 0xE000  # of Unicode: they stand in no text
_names_of_nodes: dict[str, str] = {}


@dataclasses.dataclass(frozen=True)
class _History:
    """What a tensor's text says of it beside its values: whether it requires gradients, and the name of its node."""

    is_parameter: bool
    requires_grad: bool
    name_of_node: str

    @classmethod
    def of(cls, tx: Any, variable: Any) -> _History:
        traced = variable.as_proxy().node.meta["example_value"]
        known = tx.output.resolve_source_value(variable.source) if variable.source else traced
        node = known.grad_fn
        name = type(node).__name__ if node is not None else ""
        if name == "CppFunction":
            name = node.name().rsplit("::", maxsplit=1)[-1]
        return cls(isinstance(known, torch.nn.Parameter), known.requires_grad, name)

    def given_to(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor below autograd, as it was above it."""
        if tensor.requires_grad or not self.requires_grad:
            return tensor
        if self.is_parameter:
            return torch.nn.Parameter(tensor.detach())
        leaf = tensor.detach().requires_grad_()
        if not self.name_of_node:
            return leaf
        with torch.enable_grad():
            return _node_like(self.name_of_node).apply(leaf)


@functools.cache
def _node_like(name: str) -> Any:
    """A function whose node has a name as long as this one: its text breaks its lines where that of ``name`` does."""
    stand_in = chr(_PRIVATE_CHARACTERS + len(_names_of_nodes)) * max(1, len(name) - len("Backward"))
    _names_of_nodes[f"{stand_in}Backward"] = name
    functions = {"forward": staticmethod(lambda _, x: x.view_as(x)), "backward": staticmethod(lambda _, grad: grad)}
    return type(stand_in, (torch.autograd.Function,), functions)


def _with_names_of_nodes(error: ValueError) -> ValueError:
    text = str(error)
    for stand_in, name in _names_of_nodes.items():
        text = text.replace(stand_in, name)
    return ValueError(text)
