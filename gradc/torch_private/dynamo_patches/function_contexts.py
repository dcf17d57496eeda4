"""What the code of an autograd.Function tells its ``ctx``, where Dynamo compiles that code by itself."""

from __future__ import annotations

from typing import Any

from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lists import TupleVariable
from torch._dynamo.variables.misc import AutogradFunctionContextVariable

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

# What these methods are in Python: ctx.ATTRIBUTE = their arguments.
_ATTRIBUTES = {"mark_dirty": "dirty_tensors", "mark_non_differentiable": "non_differentiable"}


def keep_marks_of_functions() -> Patch:
    """Set the attribute that ``ctx.mark_non_differentiable`` sets, and the one of ``ctx.mark_dirty``.

    Of a Function that is called eagerly, ``forward`` is a frame of its own to Dynamo. There it notes the mark for an operator
    that it does not make: the output would be differentiable. At a dirty tensor it ends the graph for the same reason.
    """
    return Patch(
        "keep_marks_of_functions",
        "Dynamo forgets what a Function's forward marks as not differentiable, and its outputs would be differentiable.",
        (around(AutogradFunctionContextVariable, "call_method", _call_method),),
    )


def _call_method(original: Method, self: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    attribute = _ATTRIBUTES.get(name)
    is_live = self.source is not None and not self.inference
    if attribute is None or kwargs or not is_live:
        return original(self, tx, name, args, kwargs)
    call = [self, ConstantVariable.create(attribute), TupleVariable(list(args))]
    return VariableTracker.build(tx, setattr).call_function(tx, call, {})
