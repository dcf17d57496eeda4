"""Operators that Dynamo cannot put into a graph end it there, and the next graph begins behind them."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator
from typing import Any

from torch._dynamo.symbolic_convert import InstructionTranslatorBase, break_graph_if_unsupported

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_OPERATORS = (
    *("BINARY_OP", "UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT", "UNARY_NOT", "CONTAINS_OP", "LOAD_ATTR"),
    *("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"),
)


def resume_behind_operators() -> Patch:
    """End graphs at operators and attributes, as Dynamo ends them at calls, and go on behind them."""
    return Patch(
        "resume_behind_operators",
        "Where Dynamo meets an operator that it cannot trace, it leaves the rest of the function alone.",
        tuple(
            around(table, dis.opmap[name], _operate) for table in dispatch_tables() for name in _OPERATORS if name in dis.opmap
        ),
    )


def _operate(original: Method, self: Any, inst: Any) -> Any:
    is_method = inst.opname == "LOAD_ATTR" and sys.version_info >= (3, 12) and inst.arg % 2  # leaves two values
    return (original if is_method else _breaking(original))(self, inst)


@functools.cache
def _breaking(original: Method) -> Method:
    return break_graph_if_unsupported(push=True, msg_prefix="An operator or attribute that cannot be traced")(original)


def dispatch_tables() -> list[Any]:
    """Of each kind of Dynamo's translators, its handlers of bytecodes."""
    return [translator.dispatch_table for translator in _translators(InstructionTranslatorBase)]


def _translators(base: type[Any]) -> Iterator[Any]:
    yield base
    for derived in base.__subclasses__():
        yield from _translators(derived)
