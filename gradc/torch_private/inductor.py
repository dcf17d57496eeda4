"""Inductor, torch's own code generator, asked for the code of one graph without autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gradc.torch_private.fakes import fake_mode_for


def functionalized_graph(function: Any, inputs: list[Any]) -> tuple[torch.fx.GraphModule, list[Any]]:
    """``function`` on inputs like ``inputs`` as a graph that Inductor takes, and the fake inputs.

    The graph has no mutation but copies to inputs at its end, and is made of the ops that Inductor does not decompose.
    """
    from torch._inductor import config  # slow to import, and not always wanted
    from torch._inductor.decomposition import select_decomp_table

    with fake_mode_for(inputs) as fakes, torch.no_grad(), config.patch(fallback_random=True):
        made = make_fx(torch.func.functionalize(function, remove="mutations"), decomposition_table=select_decomp_table())
        graph = made(*fakes)
    with fake_mode_for(inputs) as fakes:
        return graph, fakes


def compile_fx_inner(graph: torch.fx.GraphModule, fakes: list[Any]) -> Any:
    """Inductor's graph compiler, without autograd: returns a function of a list of inputs, which it empties."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner as inductor

    (output,) = graph.graph.find_nodes(op="output")
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))  # all outputs keep their strides
    with config.patch(fallback_random=True):
        return inductor(graph, fakes)


def compile_ahead(graph: torch.fx.GraphModule, fakes: list[Any]) -> str:
    """The same as a shared library for torch's ``AOTIModelContainerRunner``, without Python in it: its path."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner as inductor
    from torch._inductor.virtualized import V

    (output,) = graph.graph.find_nodes(op="output")
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))
    with config.patch(fallback_random=True, cpp_wrapper=True, compile_threads=1), V.set_aot_compilation(True):
        made: Any = inductor(graph, fakes, aot_mode=True, cpp_wrapper=True)
    return str(made.filename)
