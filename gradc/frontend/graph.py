"""A graph that Dynamo captured, as gradc reads it: its inputs, what the user calls them, and the lines its calls come from.

lift_attributes: graph -> graph, tensors        the tensors that Dynamo keeps on it become its first inputs
examples_of:     graph, inputs -> examples      what to trace it with
runner_of:       graph -> (tape, *examples) -> outputs
"""

from __future__ import annotations

import copy
import operator
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from gradc.ambient import AutocastState, autocast_state, modes_kept_on_error
from gradc.backward.inner_gradients import grad_inside
from gradc.frontend import functions
from gradc.frontend.floats import is_float_input
from gradc.frontend.indexing import with_ends
from gradc.frontend.rnn_cell_decompositions import decomposed
from gradc.frontend.transforms import call_of_transform
from gradc.ir.autocast import is_cast_for
from gradc.tape.plain_tensors import as_for_plain_tensors, method_named
from gradc.tape.record import TapeRecorder
from gradc.torch_private.plain_functions import AUTOGRAD_FUNCTION

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_INDEXED = (operator.getitem, operator.setitem)
_CASTS = {"to", "type", "type_as", "half", "bfloat16", "float", "double", "_to_copy"}


def lift_attributes(graph: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The graph with the tensors that Dynamo keeps on it, an optimizer's states, as its first inputs; and these tensors."""
    names = [node.target for node in graph.graph.find_nodes(op="get_attr")]
    tensors = {name: value for name in names if isinstance(value := operator.attrgetter(name)(graph), torch.Tensor)}
    if not tensors:
        return graph, []
    nodes = copy.deepcopy(graph.graph)  # Dynamo will look at its own once more
    first = next(iter(nodes.nodes))
    placeholders: dict[int, torch.fx.Node] = {}
    attributes: list[torch.Tensor] = []
    for node in nodes.find_nodes(op="get_attr"):
        tensor = tensors.get(node.target)
        if tensor is None:
            continue
        if id(tensor) not in placeholders:
            with nodes.inserting_before(first):
                placeholders[id(tensor)] = nodes.placeholder(node.target.replace(".", "_"))
            placeholders[id(tensor)].meta = node.meta
            attributes.append(tensor)
        node.replace_all_uses_with(placeholders[id(tensor)])
        nodes.erase_node(node)
    return torch.fx.GraphModule(graph, nodes), attributes


def num_calls(graph: torch.fx.GraphModule) -> int:
    return sum(node.op.startswith("call_") for node in graph.graph.nodes)


def placeholders(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return list(graph.graph.find_nodes(op="placeholder"))


def examples_of(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """What to trace with for each input: Dynamo's symbolic value where it has one."""
    return [_example(node, value) for node, value in zip(placeholders(graph), inputs, strict=True)]


def _example(node: torch.fx.Node, value: Any) -> Any:
    """The symbolic tensor where a size is symbolic; else the real one, whose layout and history count."""
    symbolic = node.meta.get("example_value", value)
    if not isinstance(value, torch.Tensor):
        return symbolic
    sizes = (*symbolic.size(), *symbolic.stride(), symbolic.storage_offset())
    return symbolic if any(isinstance(size, torch.SymInt) for size in sizes) else value


def user_name(node: torch.fx.Node) -> str:
    """``L['self']._modules['layers']._parameters['weight']`` as ``layers.weight``."""
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None)
    if source is None:
        return node.name
    text = source.name if isinstance(source.name, str) else source.name()
    parts = re.findall(r"\['?(\w+)'?\]|\.(\w+)", text)
    words = [a or b for a, b in parts]
    words = [word for word in words if word not in ("_modules", "_parameters", "_buffers", "self")]
    return ".".join(words) or node.name


def user_line(node: torch.fx.Node) -> str:
    """``File: model.py:12 in forward, code: return self.linear(x)``, or "" where Dynamo knows none. Not of torch itself."""
    trace = node.meta.get("stack_trace") or ""
    found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)', trace)
    if not found:
        return ""
    path, line, function, code = next((frame for frame in reversed(found) if not frame[0].startswith(_TORCH)), found[-1])
    return f"File: {path}:{line} in {function}, code: {code}"


def first_line(graph: torch.fx.GraphModule) -> str:
    return next((line for node in graph.graph.nodes if (line := user_line(node))), "")


def runner_of(graph: torch.fx.GraphModule) -> Callable[..., list[Any]]:
    """What runs the graph while a tape records, and tells the tape where each call comes from."""

    def run(tape: TapeRecorder, *fakes: Any) -> list[Any]:
        with modes_kept_on_error():
            return list(_Runner(graph, tape).outputs_of(fakes))

    return run


class _Runner(torch.fx.Interpreter):
    """Runs Dynamo's graph and tells the tape which line of the user's each call comes from."""

    def __init__(self, graph: torch.fx.GraphModule, tape: TapeRecorder) -> None:
        super().__init__(graph)
        self.tape = tape

    def outputs_of(self, inputs: Sequence[Any]) -> Any:
        """As ``run``, without its progress bar, for which tqdm starts a thread that outlives it."""
        self.env, self.args_iter = {}, iter(inputs)
        for node in self.graph.nodes:
            self.env[node] = self.run_node(node)
            for dead in self.user_to_last_uses.get(node, ()):
                del self.env[dead]
        return self.env[node]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is AUTOGRAD_FUNCTION:
            self.tape.has_functions = True
            return functions.apply(*args, **kwargs)
        if target is torch.ops.higher_order.tag_activation_checkpoint:  # under fullgraph=True: inlined, saves all
            return _Runner(args[0], self.tape).outputs_of(args[1:])
        if target is torch.autograd.grad:
            return grad_inside(self.tape, *args, **kwargs)
        if (of_transform := call_of_transform(self.tape, target, args)) is not None:
            return of_transform(*args, **kwargs)
        if target in _INDEXED:
            args = args[0], with_ends(args[0], args[1]), *args[2:]
        target = as_for_plain_tensors(decomposed(target, args), args, kwargs)
        return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        function = method_named(target)
        return self.call_function(function, args, kwargs) if function else super().call_method(target, args, kwargs)

    def run_node(self, n: torch.fx.Node) -> Any:
        if is_float_input(n):
            return self.tape.float_for(super().run_node(n))
        if n.op not in ("placeholder", "output"):
            self.tape.enter_line(user_line(n), _is_cast(n), _is_cast_for(n, autocast_state()))
        return super().run_node(n)


def _call_name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_cast(node: torch.fx.Node) -> bool:
    return _call_name(node) in _CASTS


def _is_cast_for(node: torch.fx.Node, state: AutocastState) -> bool:
    """True if autocast casts the arguments of the call as a whole, so that what it calls in turn sees no autocast."""
    packet = getattr(torch.ops.aten, _call_name(node).strip("_") or "_", None) if node.op.startswith("call") else None
    return packet is not None and any(is_cast_for(getattr(packet, name), state) for name in packet.overloads())
