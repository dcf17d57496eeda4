"""``math.pow(beta, step)`` of an integer that changes from call to call is Python's, between two graphs.

Dynamo makes a symbol of such an integer, but for most functions of ``math`` there is no symbol of the result: it then takes the
integer for a constant again and compiles the function anew for each, up to its limit, behind which all of it runs eagerly.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch._dynamo.variables import SymNodeVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.dynamo_patches.opaque import Kind, end_graph
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

INTEGER = Kind(
    (int,),
    "gradc: function of an integer that changes",
    "Python calculates it between two graphs; the result is an input of the second.",
)
_SYMBOLIC = {"ceil", "floor", "trunc"}  # and those that torch has as torch._sym_sqrt and so on
_WITHOUT_SYMBOL = {
    function
    for name, function in vars(math).items()
    if callable(function) and name not in _SYMBOLIC and not hasattr(torch, f"_sym_{name}")
}


def calculate_with_integers_in_python(is_ours: IsOurs) -> Patch:
    """End the graph at such a function. Under ``fullgraph=True`` the integer is taken for a constant, as Dynamo does."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            is_calculated = self.value in _WITHOUT_SYMBOL and any(isinstance(x.realize(), SymNodeVariable) for x in args)
            if is_calculated and not tx.one_graph and is_ours(tx.output.compiler_fn):
                end_graph(INTEGER, f"math.{self.value.__name__}")
            return original(self, tx, args, kwargs)

        return call

    return Patch(
        "calculate_with_integers_in_python",
        "A function of math of a step's number was compiled anew at each step, up to Dynamo's limit.",
        (Replace(TorchInGraphFunctionVariable, "call_function", make),),
    )
