"""What runs the pieces of a captured backward: the native executor, a backend of gradc's, or the user's own compiler.

    lower_with: compiler -> (Program -> runner)          runner: list of inputs -> list of outputs

``compiler`` is what ``enable`` was given: None, ``gradc.compile(backend=...)``, or a function from GraphModule to callable,
such as ``torch.compile``. A graph without live nodes is one piece; live nodes cut it, since they run with their own hooks.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from gradc import executor
from gradc.backends import Lower, lower_of, seen
from gradc.errors import ConfigError, UnsupportedError
from gradc.executor import Runner
from gradc.executor.core import interpret
from gradc.ir.program import Program
from gradc.ir.values import Ref, Sym, leaves, map_leaves
from gradc.options import CompileOptions

Compiler = Callable[[Any], Callable[..., Any]]


def options_of(compiler: Compiler | None) -> CompileOptions | None:
    """The options of what ``gradc.compile(backend=..., ...)`` returns without a target; None for another compiler."""
    options = getattr(compiler, "compile_options", None)
    return options if isinstance(options, CompileOptions) else None


def lower_with(compiler: Compiler | None) -> Lower:
    """See the module's docstring.

    Raises:
        ConfigError: for a compiler that cannot be called.
    """
    if compiler is None:
        return _lower_native
    options = options_of(compiler)
    if options is not None:
        return functools.partial(_lower_with_backend, lower_of(options))
    if not callable(compiler):
        raise ConfigError(f"compiled_autograd.enable takes a function from GraphModule to callable, not {compiler!r}.")
    return functools.partial(_lower_with_function, compiler)


def takes_symbols(compiler: Compiler | None) -> bool:
    """False for a compiler of GraphModules: each set of sizes is a graph of its own."""
    return compiler is None or options_of(compiler) is not None


def graph_of(program: Program) -> torch.fx.GraphModule:
    """``program`` as a GraphModule: (inputs, sizes, scalars, hooks) -> outputs, the last three empty."""
    graph, module = torch.fx.Graph(), torch.nn.Module()
    inputs, _, _, _ = (graph.placeholder(name) for name in ("inputs", "sizes", "scalars", "hooks"))
    values = {slot: graph.call_function(operator.getitem, (inputs, number)) for number, slot in enumerate(program.inputs)}
    for number, (slot, tensor) in enumerate(program.constants.items()):
        setattr(module, f"constant_{number}", tensor)
        values[slot] = graph.get_attr(f"constant_{number}")

    def argument(leaf: Any) -> Any:
        return values[leaf.slot] if isinstance(leaf, Ref) else leaf

    for call in program.instructions:
        if any(isinstance(leaf, Sym) for leaf in leaves((call.args, call.kwargs))) or call.is_nested:
            raise UnsupportedError("call that has no place in a GraphModule", str(call.op))
        node = graph.call_function(call.op, map_leaves(argument, call.args), map_leaves(argument, call.kwargs))
        for number, out in enumerate(call.outs):
            if out is not None:
                values[out] = graph.call_function(operator.getitem, (node, number)) if call.returns_list else node
    graph.output([argument(out) for out in program.outputs])
    return torch.fx.GraphModule(module, graph, "CompiledAutograd")


def _lower_native(program: Program) -> Runner:
    try:
        return seen(executor.lower)(program)
    except UnsupportedError:
        return interpret.lower(program)


def _lower_with_backend(lower: Lower, program: Program) -> Runner:
    try:
        return lower(program)
    except UnsupportedError:
        return interpret.lower(program)


def _lower_with_function(compiler: Compiler, program: Program) -> Runner:
    compiled = compiler(graph_of(program))

    def run(inputs: list[Any]) -> list[Any]:
        with interpret.below_autograd():
            return list(compiled(inputs, [], [], []))

    return run
