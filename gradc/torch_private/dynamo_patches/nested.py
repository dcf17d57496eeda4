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
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

_MARK = "_gradc_compiled"
_WHY = "What gradc compiled stays gradc's: another backend may give it other gradients than eager's."
_INSIDE = "_torchdynamo_inline"  # where Dynamo finds the function that a compiled one was made of


def keep_what_gradc_compiled(is_ours: IsOurs) -> Patch:
    """End the graphs of other backends where gradc's functions are called; torch.compile of one returns it, with a warning.

    The function that Dynamo would trace is a marked copy. gradc's own graphs go on through it; so does torch.export.
    """

    def make_context(original: Method) -> Method:
        @functools.wraps(original)
        def compile(self: Any, fn: Any) -> Any:
            if is_compiled(fn) and not self.export and is_ours(backend_of(fn)) and not is_ours(self.callback):
                name = getattr(fn, "__qualname__", type(fn).__name__)
                warnings.warn(f"torch.compile: {name} is compiled by gradc already, and stays so.", stacklevel=3)
                return fn
            compiled = original(self, fn)
            if isinstance(compiled, types.FunctionType) and hasattr(compiled, _INSIDE) and is_ours(self.callback):
                setattr(compiled, _INSIDE, _marked(getattr(compiled, _INSIDE)))
            return compiled

        return compile

    def make_inline(original: Method) -> Method:
        @functools.wraps(original)
        def inline(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            if hasattr(self.fn, _MARK) and not tx.output.export and not is_ours(tx.output.compiler_fn):
                hints = ["Compile the function around it with gradc, or not at all."]
                end_graph("compiled by gradc", _WHY, self.fn.__qualname__, hints=hints)
            return original(self, tx, *args, **kwargs)

        return inline

    def make_method(original: Method) -> Method:
        @functools.wraps(original)
        def resolve(self: Any, tx: Any, name: str, found: Any, source: Any) -> Any:
            is_of_others = self.source is not None and not tx.output.export and not is_ours(tx.output.compiler_fn)
            if is_of_others and isinstance(found, types.FunctionType) and is_compiled(found) and is_ours(backend_of(found)):
                return DelayGraphBreakVariable(msg=_WHY, source=AttrSource(self.source, name))
            return original(self, tx, name, found, source)

        return resolve

    return Patch(
        "keep_what_gradc_compiled",
        "A compiled function inside another's graph gets the gradients of the backend outside, not those that gradc promised.",
        (
            Replace(_TorchDynamoContext, "__call__", make_context),
            *(Replace(kind, "call_function", make_inline) for kind in FUNCTIONS),
            Replace(UserDefinedObjectVariable, "resolve_type_attr", make_method),
        ),
    )


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
