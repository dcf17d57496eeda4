"""A formula's numbers as data: what Python computes of a learning rate and a count of steps, written down for C++.

    written_down: (learning rate, count) -> numbers, as a function -> operations in their order; None where that cannot be

The numbers are asked once, of a learning rate and a count that note what is done with them. What Python computes of constants
alone is computed then; the rest are operations on doubles, which round in C++ as in Python (``csrc/arithmetic.h``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Operations = tuple[tuple[str, float], ...]  # in postfix order; the number is that of a "constant"
_MOST = 2**53  # up to here integers are doubles
_RATE, _COUNT = (("rate", 0.0),), (("count", 0.0),)


def written_down(numbers: Callable[[Any, Any], Sequence[Any]]) -> Operations | None:
    """See the module's docstring. Each number stays on the stack: as many as there are are left in the end."""
    try:
        found = numbers(_Noted(_RATE), _Noted(_COUNT))
        return sum((_operations(number) for number in found), ())
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return None


class _Noted:
    """A number that is not known yet, by the operations that give it."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations

    def __neg__(self) -> _Noted:
        return _Noted((*self.operations, ("negate", 0.0)))

    def _no_arithmetic(self, *_: object) -> Any:
        raise TypeError("a number that is not known yet")

    __bool__ = __eq__ = __ne__ = _no_arithmetic


def _of_two(name: str) -> tuple[Any, Any]:
    def forward(self: _Noted, other: Any) -> _Noted:
        return _Noted((*self.operations, *_operations(other), (name, 0.0)))

    def reflected(self: _Noted, other: Any) -> _Noted:
        return _Noted((*_operations(other), *self.operations, (name, 0.0)))

    return forward, reflected


for _name, _special in (("add", "add"), ("subtract", "sub"), ("multiply", "mul"), ("divide", "truediv"), ("power", "pow")):
    _forward, _reflected = _of_two(_name)
    setattr(_Noted, f"__{_special}__", _forward)
    setattr(_Noted, f"__r{_special}__", _reflected)


def _operations(number: Any) -> Operations:
    """Raises TypeError for what is neither noted nor a number that a double is."""
    if isinstance(number, _Noted):
        return number.operations
    if type(number) is float or (type(number) in (int, bool) and abs(number) <= _MOST):
        return (("constant", float(number)),)
    raise TypeError(f"{number!r} is no double")
