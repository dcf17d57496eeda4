"""``getattr`` and ``hasattr`` of what Dynamo takes for a constant: partials have attributes, and an end of a graph is one."""

from __future__ import annotations

import functools
from typing import Any

from torch._dynamo.exc import Unsupported
from torch._dynamo.variables.builtin import GetAttrBuiltinVariable
from torch._dynamo.variables.functions import FunctoolsPartialVariable, UserFunctionVariable

from gradc.torch_private.dynamo_names import GETATTR
from gradc.torch_private.dynamo_patches.ends import DICTIONARY_OF_ATTRIBUTES, PREFIX, end_graph
from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import Method, Patch, Replace

_OF_PARTIALS = {*vars(functools.partial), *vars(object)}


class _Ended(Exception):
    """Carries an end of gradc's past Dynamo, which would ask Python where an attribute of a constant cannot be traced."""

    def __init__(self, end: Unsupported) -> None:
        super().__init__()
        self.end = end


def ask_for_attributes_as_python_does() -> Patch:
    """End the graph at attributes that a partial was given, and at those of a function whose dictionary is met by itself."""
    return Patch(
        "ask_for_attributes_as_python_does",
        "Dynamo tells the attributes of a new partial, and those that a function had before the graph.",
        (
            Replace(GetAttrBuiltinVariable, "_call_getattr", _make_inner),
            Replace(GetAttrBuiltinVariable, "call_function", _make_outer),
            Replace(FunctoolsPartialVariable, GETATTR, _make_partial),
            Replace(FunctoolsPartialVariable, "call_obj_hasattr", _make_partial),
            Replace(UserFunctionVariable, GETATTR, _make_function),
        ),
    )


def _make_inner(original: Method) -> Method:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except Unsupported as end:
            if (end.gb_type or "").startswith(PREFIX):
                raise _Ended(end) from None
            raise

    return call


def _make_outer(original: Method) -> Method:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except _Ended as ended:
            raise ended.end from None

    return call


def _make_partial(original: Method) -> Method:
    @functools.wraps(original)
    def ask(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if self.source and is_compiling_for_gradc() and name not in _OF_PARTIALS:
            end_graph("attribute of a partial", "Dynamo knows those alone that every partial has.", name)
        return original(self, tx, name, *args, **kwargs)

    return ask


def _make_function(original: Method) -> Method:
    @functools.wraps(original)
    def ask(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if is_compiling_for_gradc() and id(getattr(self.fn, "__dict__", None)) in tx.output.side_effects.id_to_variable:
            end_graph(DICTIONARY_OF_ATTRIBUTES, "It is met as a dictionary, too.", name)
        return original(self, tx, name, *args, **kwargs)

    return ask
