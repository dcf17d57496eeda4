"""An integer that changes from call to call (a count of steps) is an input of the graph; functions of it are Python's.

Dynamo makes a symbol of an argument that is another integer, but takes those of modules for constants. And for most functions
of ``math`` there is no symbol of the result: ``math.pow(beta, step)`` makes the integer a constant again. Either way each is
compiled anew, up to Dynamo's limit, behind which all of it runs eagerly.
"""

from __future__ import annotations

import functools
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
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

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


def take_changing_integers(is_ours: IsOurs) -> Patch:
    """Make an int of a module an input of the graph once it was another when a graph was made before, of the same module."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def wrap(self: Any, value: Any) -> Any:
            if type(value) is int and is_ours(self.tx.output.compiler_fn) and _has_changed(self, value):
                return self.wrap_symint(value, dynamism=DimDynamic.DYNAMIC)
            return original(self, value)

        return wrap

    def make_symbol(original: Method) -> Method:
        @functools.wraps(original)
        def wrap(self: Any, value: int, *args: Any, **kwargs: Any) -> Any:
            if not is_ours(self.tx.output.compiler_fn) or is_constant_source(self.source):
                return original(self, value, *args, **kwargs)
            if not _fits(value):
                self.install_guards(GuardBuilder.CONSTANT_MATCH)
                return ConstantVariable.create(value=value, source=self.source)
            made = original(self, value, *args, **kwargs)
            if isinstance(made, SymNodeVariable):
                install_guard(self.source.make_guard(_guard_size))
            return made

        return wrap

    return Patch(
        "take_changing_integers",
        "Dynamo takes the ints of modules for constants: a count of steps is compiled eight times, and then no more. And it "
        "makes a symbol, which has 64 bits, of integers that have more.",
        (Replace(VariableBuilder, "wrap_literal", make), Replace(VariableBuilder, "wrap_symint", make_symbol)),
    )


def _fits(value: int) -> bool:
    return -(2**63) <= value < 2**63


def _guard_size(builder: Any, guard: Any) -> None:
    builder.get_guard_manager(guard).add_lambda_guard(_fits, [f"{guard.name} has 64 bits"], guard.user_stack)


def calculate_with_integers_in_python(is_ours: IsOurs) -> Patch:
    """End the graph at such a function. Under ``fullgraph=True`` the integer is taken for a constant, as Dynamo does."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            is_calculated = self.value in _WITHOUT_SYMBOL and any(isinstance(x.realize(), SymNodeVariable) for x in args)
            if is_calculated and not tx.one_graph and is_ours(tx.output.compiler_fn):
                end_graph(_NAME, _WHY, f"math.{self.value.__name__}")
            return original(self, tx, args, kwargs)

        return call

    return Patch(
        "calculate_with_integers_in_python",
        "A function of math of a step's number was compiled anew at each step, up to Dynamo's limit.",
        (Replace(TorchInGraphFunctionVariable, "call_function", make),),
    )


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
