"""``contextvars.ContextVar``: one that is set and reset again between two ends of a graph, and one that is read.

What is set while a graph is traced, that graph alone knows, until it is reset. If the graph ends before, it ends at ``set``.
"""

from __future__ import annotations

import contextvars
from typing import Any, NamedTuple

from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around, before

_SET = "gradc_context_variables"  # of Dynamo's output: those that are set, the last one last
_LEFT_SET = "gradc_left_set"  # of Dynamo's speculation log: those that were set when a graph ended


class _Token(VariableTracker):
    """What ``set`` returns. Whatever else is asked of it ends the graph."""

    def python_type(self) -> type:
        return contextvars.Token


class _Set(NamedTuple):
    variable: contextvars.ContextVar[Any]
    value: VariableTracker
    token: _Token


def set_context_variables_for_the_graph() -> Patch:
    """See the module's docstring."""
    return Patch(
        "set_context_variables_for_the_graph",
        "Dynamo ends the graph at each. Models of transformers set one in each forward, unless they ask who compiles.",
        (
            around(UserDefinedObjectVariable, "call_method", _call_method),
            before(OutputGraph, "compile_subgraph", _compile_subgraph),
        ),
    )


def _call_method(original: Method, self: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if type(self.value) is contextvars.ContextVar and not kwargs:
        match name, args:
            case "set", [value]:
                return _set(tx, self.value, value)
            case "reset", [token] if _reset(tx, self.value, token):
                return ConstantVariable.create(None)
            case "get", [] if (found := _get(tx, self)) is not None:
                return found
    return original(self, tx, name, args, kwargs)


def _set(tx: Any, variable: contextvars.ContextVar[Any], value: VariableTracker) -> _Token:
    if variable in vars(tx.speculation_log).get(_LEFT_SET, ()):
        end_graph("context variable", "It is set when the graph ends.", variable.name)
    token = _Token()
    _those_set(tx.output).append(_Set(variable, value, token))
    return token


def _reset(tx: Any, variable: contextvars.ContextVar[Any], token: VariableTracker) -> bool:
    """False where it was set outside, and where Python would raise."""
    known = _those_set(tx.output)
    found = [each for each in known if each.token is token.realize() and each.variable is variable]
    if not found or any(each.variable is variable for each in known[known.index(found[0]) + 1 :]):
        return False
    known.remove(found[0])
    return True


def _get(tx: Any, context_variable: Any) -> VariableTracker | None:
    for each in reversed(_those_set(tx.output)):
        if each.variable is context_variable.value:
            return each.value
    try:
        value = context_variable.value.get()
    except LookupError:
        return None
    if context_variable.source is None:
        return None
    return VariableTracker.build(tx, value, CallFunctionNoArgsSource(AttrSource(context_variable.source, "get")))


def _compile_subgraph(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    if left := {each.variable for each in _those_set(self)}:
        vars(tx.speculation_log).setdefault(_LEFT_SET, set()).update(left)
        raise RestartAnalysis(restart_reason="a context variable is set when the graph ends")


def _those_set(output: Any) -> list[_Set]:
    found: list[_Set] = vars(output).setdefault(_SET, [])
    return found
