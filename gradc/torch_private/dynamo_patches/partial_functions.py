"""Python's functions of numbers that raise for some numbers: ``1 / n``, ``n % k``, ``1 << n``, ``math.log(a)``.

A graph takes a number that changes as an input, and what Python calculates of it is calculated when the graph runs. For another
number it may raise there, behind the ``try`` that waits for it; and of a negative shift a symbol makes a number.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.dynamo_patches.changing_floats import FloatVariable
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.handlers import may_be_ended
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before

_DIVISIONS = {divmod, *(getattr(operator, name) for name in ("truediv", "floordiv", "mod", "itruediv", "ifloordiv", "imod"))}
_POWERS = {pow, operator.pow, operator.ipow}
_SHIFTS = {operator.lshift, operator.rshift, operator.ilshift, operator.irshift}
_TOTAL = {math.copysign, math.fabs, math.isclose, math.isfinite, math.isinf, math.isnan}
_OF_MATH = {value for name, value in vars(math).items() if callable(value) and not name.startswith("_")}
_PARTIAL = _DIVISIONS | _POWERS | _SHIFTS | (_OF_MATH - _TOTAL) | {int, round}


def guard_where_functions_raise() -> Patch:
    """Guard that an integer stays where the function has a value; leave it to Python what a ``try`` may catch of floats."""
    return Patch(
        "guard_where_functions_raise",
        "In a graph a division by a number that changes raises behind the try around it, and a negative shift does not raise.",
        (
            before(BuiltinVariable, "call_function", _call),
            before(TorchInGraphFunctionVariable, "call_function", _call),
        ),
    )


def _call(self: Any, tx: Any, args: Any, kwargs: Any) -> None:
    function = self.fn if isinstance(self, BuiltinVariable) else self.value
    if _is_partial(function) and args:
        numbers = [arg.realize() for arg in args]
        _guard(function, numbers)
        if any(type(number) is FloatVariable for number in numbers) and may_be_ended(tx):
            name = getattr(function, "__name__", str(function))
            end_graph("function that may raise", "Python calls it inside of its try or with, which may end the error.", name)


def _is_partial(function: Any) -> bool:
    try:
        return function in _PARTIAL
    except TypeError:  # it has no hash
        return False


def _guard(function: Any, args: list[Any]) -> None:
    """To ask a symbol is to guard the answer."""
    if len(args) < 2:
        return
    base, other = args[:2]
    if function in _DIVISIONS and isinstance(other, SymNodeVariable):
        bool(other.sym_num == 0)
    elif function in _SHIFTS and isinstance(other, SymNodeVariable):
        bool(other.sym_num < 0)
    elif function in _POWERS and isinstance(base, SymNodeVariable) and not _is_natural(other):
        bool(base.sym_num == 0)


def _is_natural(exponent: Any) -> bool:
    return type(exponent) is ConstantVariable and isinstance(exponent.value, int | float) and exponent.value >= 0
