"""The captured graph as a GraphModule, which prints as in the tutorial of Compiled Autograd, and runs.

    build_graph: Report -> GraphModule          forward(inputs, sizes, scalars, hooks) -> [results of autograd.grad]

``inputs`` are the walked tensors in their order, ``hooks`` one function for each hook and each node that runs live, in the
order of the graph. ``sizes`` and ``scalars`` are empty: sizes are part of a graph's key.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from gradc.engine.capture import Boundary, Ran, Report
from gradc.ir.program import Instruction, Ref, TensorMeta, map_leaves
from gradc.torch_private import FakeTensorMode

_ROOT = "torch::autograd::GraphRoot (NodeCall 0)"
_BEFORE = ("tensor_pre_hook", "pre_hook")


def call_hook(hook: Callable[..., Any], *values: Any, hook_type: str) -> Any:
    """What a hook makes of a gradient: itself, where the hook returns None."""
    result = hook(*values)
    return values[0] if result is None else result


def call_node(node: Callable[..., Any], inputs: list[Any]) -> Any:
    """Run a live autograd node: what cannot be recorded."""
    return node(inputs)


def exec_final_callbacks() -> None:
    """Where the engine runs the callbacks that hooks have queued."""


def build_graph(report: Report) -> torch.fx.GraphModule:
    return _Builder(report).build()


class _Builder:
    def __init__(self, report: Report) -> None:
        self.report = report
        self.graph = torch.fx.Graph()
        self.nodes: dict[int, torch.fx.Node] = {}
        self.fake_mode = FakeTensorMode()
        self.num_hooks = 0
        self.origin = ""

    def build(self) -> torch.fx.GraphModule:
        self.inputs, _, _, self.hooks = (self.graph.placeholder(name) for name in ("inputs", "sizes", "scalars", "hooks"))
        program = self.report.program
        for position, slot in enumerate(program.inputs):
            self.define(slot, self.call(operator.getitem, (self.inputs, position)))
        module = torch.nn.Module()
        for number, (slot, tensor) in enumerate(program.constants.items()):
            setattr(module, f"constant_{number}", tensor)
            self.define(slot, self.graph.get_attr(f"constant_{number}"))
        done = 0
        for event in self.report.events:
            until = event.position if isinstance(event, Boundary) else event.calls[0]
            self.add_calls(done, until)
            done = until
            match event:
                case Ran(is_leaf=True):
                    self.add_leaf(event)
                    done = event.calls[1]
                case Boundary():
                    self.add_boundary(event)
        self.add_calls(done, len(program.instructions))
        self.origin = ""
        self.call(exec_final_callbacks, ())
        self.graph.output([None if slot < 0 else self.nodes[slot] for slot in self.report.results])
        return torch.fx.GraphModule(module, self.graph, "CompiledAutograd")

    def add_calls(self, start: int, stop: int) -> None:
        for instruction in self.report.program.instructions[start:stop]:
            self.add_instruction(instruction)

    def add_instruction(self, instruction: Instruction) -> None:
        self.origin = instruction.origin
        arguments = map_leaves(self.argument, instruction.args), map_leaves(self.argument, instruction.kwargs)
        first = instruction.outs[0] if instruction.outs else None
        is_new = first is not None and first not in self.nodes and not instruction.returns_list
        name = self.report.program.slots[first].name if first is not None and is_new else None
        node = self.call(instruction.op, *arguments, name=name)
        if not instruction.returns_list:
            if first is not None:
                self.define(first, node)
            return
        for position, slot in enumerate(instruction.outs):
            if slot is not None:
                self.define(slot, self.call(operator.getitem, (node, position)))

    def add_leaf(self, event: Ran) -> None:
        self.origin = self.origin_of(event.node)
        variable, grad = self.report.variables[event.node], event.inputs[0]
        self.call(torch.ops.inductor.accumulate_grad_.default, (self.nodes[variable], self.nodes[grad]))

    def add_boundary(self, event: Boundary) -> None:
        """A node that runs live: its hooks before and after it, each called on its own."""
        self.origin = self.origin_of(event.node)
        values = [None if slot < 0 else self.nodes[slot] for slot in event.inputs]
        kinds = self.report.hooks.get(event.node, [])
        for kind in kinds:
            if kind in _BEFORE:
                values[0] = self.hooked(kind, values[0], event.inputs[0])
        node = self.call(call_node, (self.next_hook(), values))
        for position, slot in enumerate(event.outputs):
            if slot >= 0:
                self.define(slot, self.call(operator.getitem, (node, position)))
        for kind in kinds:
            if kind not in _BEFORE:
                self.call(call_hook, (self.next_hook(), *values), {"hook_type": kind})

    def hooked(self, kind: str, value: Any, slot: int) -> torch.fx.Node:
        node = self.call(call_hook, (self.next_hook(), value), {"hook_type": kind})
        self.annotate(node, slot)
        return node

    def next_hook(self) -> torch.fx.Node:
        self.num_hooks += 1
        return self.call(operator.getitem, (self.hooks, self.num_hooks - 1))

    def origin_of(self, node: int) -> str:
        return f"{self.report.names[node]} (NodeCall {node + 1})"

    def call(self, function: Any, arguments: Any, named: Any = None, name: str | None = None) -> torch.fx.Node:
        node = self.graph.create_node("call_function", function, arguments, named or {}, name)
        if self.origin and self.origin != _ROOT:
            node.meta["stack_trace"] = f'  File "{__file__}", line 0, in autograd\n    {self.origin}'
        return node

    def argument(self, leaf: Any) -> Any:
        return self.nodes[leaf.slot] if isinstance(leaf, Ref) else leaf

    def define(self, slot: int, node: torch.fx.Node) -> None:
        self.nodes[slot] = node
        self.annotate(node, slot)

    def annotate(self, node: torch.fx.Node, slot: int) -> None:
        meta = self.report.program.slots[slot].meta if slot >= 0 else None
        if meta is not None:
            node.meta["val"] = self.fake(meta)

    def fake(self, meta: TensorMeta) -> torch.Tensor:
        with self.fake_mode:
            return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)  # type: ignore[arg-type]
