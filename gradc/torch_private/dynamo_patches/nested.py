"""What gradc compiled, called in a function that another backend of torch.compile compiles: it stays gradc's.

Dynamo looks through a compiled function, to the one that it was made of, and gives that to the backend outside.
"""

from __future__ import annotations

import functools
import types
import warnings
from typing import Any

from torch._dynamo.eval_frame import _TorchDynamoContext
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.misc import DelayGraphBreakVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from gradc.torch_private.dynamo import backend_of, is_compiled
from gradc.torch_private.dynamo_names import FUNCTIONS
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.ours import is_ours
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around, before

_MARK = "_gradc_compiled"
_WHY = "What gradc compiled stays gradc's: another backend may give it other gradients than eager's."
_INSIDE = "_torchdynamo_inline"  # where Dynamo finds the function that a compiled one was made of


def keep_what_gradc_compiled() -> Patch:
    """End the graphs of other backends where gradc's functions are called; torch.compile of one returns it, with a warning.

    The function that Dynamo would trace is a marked copy. gradc's own graphs go on through it; so does torch.export.
    """
    return Patch(
        "keep_what_gradc_compiled",
        "A compiled function inside another's graph gets the gradients of the backend outside, not those that gradc promised.",
        (
            around(_TorchDynamoContext, "__call__", _keep, scope=_is_ours, for_others=True),
            after(_TorchDynamoContext, "__call__", _mark, scope=_is_ours),
            *(before(kind, "call_function", _inline, for_others=True) for kind in FUNCTIONS),
            around(UserDefinedObjectVariable, "resolve_type_attr", _method, for_others=True),
        ),
    )


def _is_ours(context: Any, *_: Any) -> bool:
    return is_ours(context.callback)


def _keep(original: Method, self: Any, fn: Any) -> Any:
    if is_compiled(fn) and not self.export and is_ours(backend_of(fn)):
        name = getattr(fn, "__qualname__", type(fn).__name__)
        warnings.warn(f"torch.compile: {name} is compiled by gradc already, and stays so.", stacklevel=4)
        return fn
    return original(self, fn)


def _mark(compiled: Any, self: Any, fn: Any) -> Any:
    if isinstance(compiled, types.FunctionType) and hasattr(compiled, _INSIDE):
        setattr(compiled, _INSIDE, _marked(getattr(compiled, _INSIDE)))
    return compiled


def _inline(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    if hasattr(self.fn, _MARK) and not tx.output.export:
        hints = ["Compile the function around it with gradc, or not at all."]
        end_graph("compiled by gradc", _WHY, self.fn.__qualname__, hints=hints)


def _method(original: Method, self: Any, tx: Any, name: str, type_attr: Any, source: Any) -> Any:
    is_of_others = self.source is not None and not tx.output.export and isinstance(type_attr, types.FunctionType)
    if is_of_others and is_compiled(type_attr) and is_ours(backend_of(type_attr)):
        return DelayGraphBreakVariable(msg=_WHY, source=AttrSource(self.source, name))
    return original(self, tx, name, type_attr, source)


def _marked(function: Any) -> Any:
    """A copy of a function or method, with a mark; anything else as it is."""
    if isinstance(function, types.MethodType):
        return types.MethodType(_marked(function.__func__), function.__self__)
    if not isinstance(function, types.FunctionType):
        return function
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(made, function)
    del made.__wrapped__  # type: ignore[attr-defined]
    setattr(made, _MARK, True)
    return made
