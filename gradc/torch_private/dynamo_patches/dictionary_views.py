"""Mapping proxies and keys of a dictionary, from outside: they change with it, and Dynamo does not know which one it is."""

from __future__ import annotations

from typing import Any

from torch._dynamo.side_effects import SideEffects
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.dicts import ConstDictVariable, MappingProxyVariable
from torch._dynamo.variables.sets import DictKeySetVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import after, before

_ARE_MET = "gradc_views_are_met"  # of what a graph is made in


def see_dictionaries_through_their_views() -> Patch:
    """End the graph between a dictionary from outside that is written into, and a view from outside, which may be one of it."""
    return Patch(
        "see_dictionaries_through_their_views",
        "A proxy or keys from outside tell Dynamo what their dictionary held before the graph.",
        (
            after(MappingProxyVariable, "__init__", _view),
            after(DictKeySetVariable, "__init__", _view),
            before(SideEffects, "mutation", _mutation),
        ),
    )


def _view(_: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    if not self.source or self.source.name.endswith(".__dict__"):  # a class's
        return
    output = InstructionTranslator.current_tx().output
    if output.side_effects.has_existing_dict_mutation():
        _end_graph(self)
    vars(output)[_ARE_MET] = True


def _mutation(self: Any, var: Any, *args: Any, **kwargs: Any) -> None:
    is_from_outside = isinstance(var, ConstDictVariable) and var.source
    if is_from_outside and _ARE_MET in vars(self.output_graph_weakref()):
        _end_graph(var)


def _end_graph(var: Any) -> None:
    end_graph("view of a dictionary", "It may be one of the dictionary that is written into.", var.source.name)
