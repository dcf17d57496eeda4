"""A number that Python's generator draws is a number to what is called with it, as in eager: no tensor, which would promote.

Dynamo hands it to the graph as a tensor without dimensions, of float64 or int64: another one of float32 becomes float64 by it.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo.source import RandomValueSource
from torch._dynamo.variables.builder import VariableBuilder

from gradc.torch_private.dynamo_patches.changing_floats import FloatVariable
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around


def take_drawn_numbers() -> Patch:
    """Make a drawn float an input of the graph, as one that changes; end the graph where an int is drawn."""
    return Patch(
        "take_drawn_numbers",
        "As a tensor, what random.uniform() draws promotes other tensors without dimensions.",
        (around(VariableBuilder, "wrap_unspecialized_primitive", _wrap),),
    )


def _wrap(original: Method, self: Any, value: Any) -> Any:
    source, output = self.get_source(), self.tx.output
    if not isinstance(source, RandomValueSource):
        return original(self, value)
    if type(value) is not float:
        end_graph("random integer", "gradc leaves an int that is drawn to Python: Dynamo makes a tensor of it.")
    return FloatVariable(value, output, source=source)
