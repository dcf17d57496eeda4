"""An integer that changes from call to call (a count of steps) is an input of the graph; functions of it are Python's.

Dynamo makes a symbol of an argument that is another integer, but takes those of modules for constants. And for most functions
of ``math`` there is no symbol of the result: ``math.pow(beta, step)`` makes the integer a constant again. Either way each is
compiled anew, up to Dynamo's limit, behind which all of it runs eagerly.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, is_constant_source
from torch._dynamo.variables import SymNodeVariable
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch.fx.experimental.symbolic_shapes import DimDynamic

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before

# What each int of a module was when a graph was made for it; None once it was another.
_seen: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, int | None]] = weakref.WeakKeyDictionary()

_NAME = "function of an integer that changes"
_WHY = "Python calculates it between two graphs; the result is an input of the second."
_SYMBOLIC = {"ceil", "floor", "trunc"}  # and those that torch has as torch._sym_sqrt and so on
_WITHOUT_SYMBOL = {
    function
    for name, function in vars(math).items()
    if callable(function) and name not in _SYMBOLIC and not hasattr(torch, f"_sym_{name}")
}


def take_changing_integers() -> Patch:
    """Make an int of a module an input of the graph once it was another when a graph was made before, of the same module."""
    return Patch(
        "take_changing_integers",
        "Dynamo takes the ints of modules for constants: a count of steps is compiled eight times, and then no more. And it "
        "makes a symbol, which has 64 bits, of integers that have more.",
        (around(VariableBuilder, "wrap_literal", _wrap), around(VariableBuilder, "wrap_symint", _symbol)),
    )


def _wrap(original: Method, self: Any, value: Any) -> Any:
    if type(value) is int and _has_changed(self, value):
        return self.wrap_symint(value, dynamism=DimDynamic.DYNAMIC)
    return original(self, value)


def _symbol(original: Method, self: Any, value: int, *args: Any, **kwargs: Any) -> Any:
    if is_constant_source(self.source):
        return original(self, value, *args, **kwargs)
    if not _fits(value):
        self.install_guards(GuardBuilder.CONSTANT_MATCH)
        return ConstantVariable.create(value=value, source=self.source)
    made = original(self, value, *args, **kwargs)
    if isinstance(made, SymNodeVariable):
        install_guard(self.source.make_guard(_guard_size))
    return made


def _fits(value: int) -> bool:
    return -(2**63) <= value < 2**63


def _guard_size(builder: Any, guard: Any) -> None:
    builder.get_guard_manager(guard).add_lambda_guard(_fits, [f"{guard.name} has 64 bits"], guard.user_stack)


def calculate_with_integers_in_python() -> Patch:
    """End the graph at such a function. Under ``fullgraph=True`` the integer is taken for a constant, as Dynamo does."""
    return Patch(
        "calculate_with_integers_in_python",
        "A function of math of a step's number was compiled anew at each step, up to Dynamo's limit.",
        (before(TorchInGraphFunctionVariable, "call_function", _call),),
    )


def _call(self: Any, tx: Any, args: Any, kwargs: Any) -> None:
    is_calculated = self.value in _WITHOUT_SYMBOL and any(isinstance(x.realize(), SymNodeVariable) for x in args)
    if is_calculated and not tx.one_graph:
        end_graph(_NAME, _WHY, f"math.{self.value.__name__}")


def _has_changed(builder: Any, value: int) -> bool:
    source = builder.source
    if not isinstance(source, AttrSource) or not source.guard_source.is_unspecialized_nn_module():
        return False
    try:
        module = builder.tx.output.resolve_source_value(source.base)
    except Exception:  # it is no more what it was when the frame began
        return False
    if not isinstance(module, torch.nn.Module):
        return False
    seen = _seen.setdefault(module, {})
    if seen.setdefault(source.member, value) != value:
        seen[source.member] = None
    return seen[source.member] is None
