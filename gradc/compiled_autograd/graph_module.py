"""The captured graph as a GraphModule, which prints as in the tutorial of Compiled Autograd, and runs.

    build_graph: Report -> GraphModule          forward(inputs, sizes, scalars, hooks) -> [results of autograd.grad]

``inputs`` are the walked tensors in their order, then what compiled regions saved and read; ``hooks`` one function for each
hook and each node that runs live, in the order of the graph. ``sizes`` and ``scalars`` are empty: a graph shows one run.
Regions that gradc compiled show their own calls: ``aot0_mul`` is ``mul`` of the backward of the region compiled first.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
from collections.abc import Callable
from typing import Any

import torch

from gradc.capture.recording import Boundary, HookKind, Ran, Report
from gradc.ir.program import Program
from gradc.ir.values import Instruction, Ref, Sym, TensorMeta, map_leaves
from gradc.torch_private.fakes import FakeTensorMode
from gradc.walk.origins import RegionBackward

_ROOT = "torch::autograd::GraphRoot (NodeCall 0)"


def call_hook(hook: Callable[..., Any], *values: Any, hook_type: str) -> Any:
    """What a hook makes of a gradient: itself, where the hook returns None."""
    result = hook(*values)
    return values[0] if result is None else result


def call_node(node: Callable[..., Any], inputs: list[Any]) -> Any:
    """Run a live autograd node: what cannot be recorded."""
    return node(inputs)


def accumulate_grad_(variable: torch.Tensor, grad: torch.Tensor) -> None:
    """What a leaf does with its gradient: keeps it in ``.grad``, or adds it in place to the one that is there."""
    with torch.no_grad():
        if variable.grad is None:
            variable.grad = torch.empty_like(variable).copy_(grad)
        else:
            variable.grad.add_(grad)


def exec_final_callbacks() -> None:
    """Where the engine runs the callbacks that hooks have queued."""


def build_graph(report: Report) -> torch.fx.GraphModule:
    return _Builder(report).build()


_last: Callable[[], torch.fx.GraphModule] | None = None


def remember(report: Report) -> None:
    """Let ``report`` be what ``last_graph`` shows. The graph is built when somebody asks for it."""
    global _last
    _last = functools.cache(lambda: build_graph(report))


def forget() -> None:
    global _last
    _last = None


def last_graph() -> torch.fx.GraphModule | None:
    """The graph captured last, to look at, or to call: ``(inputs, sizes, scalars, hooks) -> results``.

    ``inputs``: tensors in the order of the walk (incoming gradients, what nodes saved, leaves), then what compiled regions
    saved and read. ``hooks``: a function for each hook and each node that runs live. ``sizes``, ``scalars``: empty, since
    a graph shows one run, with that run's shapes and dtypes.

    Returns:
        A GraphModule, or None if nothing has been captured since ``reset``.
    """
    return None if _last is None else _last()


@dataclasses.dataclass
class _Scope:
    """One Program inside the graph. ``number`` gives symbolic sizes their values."""

    program: Program
    prefix: str = ""
    number: Callable[[Any], Any] = lambda value: value
    nodes: dict[int, torch.fx.Node] = dataclasses.field(default_factory=dict)


class _Builder:
    def __init__(self, report: Report) -> None:
        self.report = report
        self.graph = torch.fx.Graph()
        self.module = torch.nn.Module()
        self.own = _Scope(report.program)
        serials = sorted({region.serial for region in report.regions.values()})
        number = {serial: position for position, serial in enumerate(serials)}
        self.scopes = {
            node: _Scope(region.program, f"aot{number[region.serial]}_", region.sizes)
            for node, region in report.regions.items()
        }
        self.fake_mode = FakeTensorMode()
        self.num_hooks = self.num_inputs = self.num_constants = 0
        self.origin = self.line = ""

    def build(self) -> torch.fx.GraphModule:
        self.inputs, _, _, self.hooks = (self.graph.placeholder(name) for name in ("inputs", "sizes", "scalars", "hooks"))
        self.add_inputs()
        self.add_events()
        self.origin = self.line = ""
        self.call(exec_final_callbacks, ())
        self.graph.output([None if slot < 0 else self.own.nodes[slot] for slot in self.report.results])
        return torch.fx.GraphModule(self.module, self.graph, "CompiledAutograd")

    # ---- what the graph starts from

    def add_inputs(self) -> None:
        for slot in self.report.program.inputs:
            self.add_input(self.own, slot)
        for node, region in self.report.regions.items():
            self.add_saved(self.scopes[node], region)
        for scope in (self.own, *self.scopes.values()):
            self.add_constants(scope)

    def add_input(self, scope: _Scope, slot: int) -> None:
        name = scope.prefix + scope.program.slots[slot].name if scope.prefix else None
        self.define(scope, slot, self.call(operator.getitem, (self.inputs, self.num_inputs), name=name))
        self.num_inputs += 1

    def add_saved(self, scope: _Scope, region: RegionBackward) -> None:
        """The inputs of a region's backward: gradients that arrive, saved tensors, symbols."""
        inputs = region.program.inputs
        end = len(inputs) - len(region.sizes.values)
        for slot in inputs[end - region.num_saved : end]:
            self.add_input(scope, slot)

    def add_constants(self, scope: _Scope) -> None:
        for slot, tensor in scope.program.constants.items():
            name = f"constant_{self.num_constants}"
            self.num_constants += 1
            setattr(self.module, name, tensor)
            self.define(scope, slot, self.graph.get_attr(name))

    # ---- what happens

    def add_events(self) -> None:
        done = 0
        for event in self.report.events:
            until = event.position if isinstance(event, Boundary) else event.calls.start
            self.add_calls(done, until)
            done = until
            match event:
                case Ran(is_leaf=True):
                    self.add_leaf(event)
                    done = event.calls.stop
                case Boundary():
                    self.add_boundary(event)
        self.add_calls(done, len(self.report.program.instructions))

    def add_calls(self, start: int, stop: int) -> None:
        for instruction in self.report.program.instructions[start:stop]:
            self.origin = instruction.origin
            self.line = self.report.lines.get(_node_in(instruction.origin), "")
            self.add_instruction(self.own, instruction)

    def add_instruction(self, scope: _Scope, instruction: Instruction) -> None:
        def argument(leaf: Any) -> Any:
            if isinstance(leaf, Ref):
                return scope.nodes[leaf.slot]
            return scope.number(leaf) if isinstance(leaf, Sym) else leaf

        arguments = map_leaves(argument, instruction.args), map_leaves(argument, instruction.kwargs)
        first = instruction.outs[0] if instruction.outs else None
        is_new = first is not None and first not in scope.nodes and not instruction.returns_list
        name = scope.prefix + scope.program.slots[first].name if first is not None and is_new else None
        node = self.call(instruction.op, *arguments, name=name)
        if not instruction.returns_list:
            if first is not None:
                self.define(scope, first, node)
            return
        for position, slot in enumerate(instruction.outs):
            if slot is not None:
                name = scope.prefix + scope.program.slots[slot].name if scope.prefix else None
                self.define(scope, slot, self.call(operator.getitem, (node, position), name=name))

    def add_leaf(self, event: Ran) -> None:
        self.enter(event.node)
        self.accumulated(event.node, self.own.nodes[event.inputs[0]])

    def add_boundary(self, event: Boundary) -> None:
        """A node that runs live: its hooks before and after it, each called on its own."""
        self.enter(event.node)
        values = [None if slot < 0 else self.own.nodes[slot] for slot in event.inputs]
        kinds = [kind for kind in self.report.hooks.get(event.node, ()) if event.is_needed or kind is HookKind.TENSOR_PRE]
        for kind in kinds:
            if kind.is_before:
                values[0] = self.hooked(kind, values[0], event.inputs[0])
        results: list[Any]
        if not event.is_needed:
            results = values
        elif event.node in self.scopes:
            results = self.region_results(self.scopes[event.node], values)
        elif event.node in self.report.variables:
            results = self.accumulated(event.node, values[0])
        else:
            results = self.node_results(event, values)
        for slot, result in zip(event.outputs, results, strict=True):
            if slot >= 0:
                self.define(self.own, slot, result)
        self.enter(event.node)
        for kind in kinds:
            if not kind.is_before:
                self.call(call_hook, (self.next_hook(), *values), {"hook_type": kind.value})

    def accumulated(self, node: int, grad: Any) -> list[Any]:
        if grad is not None:
            values = self.own.nodes[self.report.variables[node]], grad
            self.call(accumulate_grad_, values, name="accumulate_grad_")
        return []

    def node_results(self, event: Boundary, values: list[Any]) -> list[Any]:
        node = self.call(call_node, (self.next_hook(), values))
        is_wanted = [slot >= 0 for slot in event.outputs]
        return [self.call(operator.getitem, (node, i)) if wanted else None for i, wanted in enumerate(is_wanted)]

    def region_results(self, scope: _Scope, values: list[Any]) -> list[Any]:
        """The calls of a compiled region's backward, in the place of its node."""
        given = [value for value in values if value is not None]
        scope.nodes.update(zip(scope.program.inputs, given))
        for instruction in scope.program.instructions:
            self.line = instruction.where
            self.add_instruction(scope, instruction)
        return [scope.nodes[out.slot] if isinstance(out, Ref) else None for out in scope.program.outputs]

    def hooked(self, kind: HookKind, value: Any, slot: int) -> torch.fx.Node:
        node = self.call(call_hook, (self.next_hook(), value), {"hook_type": kind.value})
        self.annotate(self.own, node, slot)
        return node

    def next_hook(self) -> torch.fx.Node:
        self.num_hooks += 1
        return self.call(operator.getitem, (self.hooks, self.num_hooks - 1))

    # ---- nodes

    def enter(self, node: int) -> None:
        self.origin = f"{self.report.names[node]} (NodeCall {node + 1})"
        self.line = self.report.lines.get(node, "")

    def call(self, function: Any, arguments: Any, named: Any = None, name: str | None = None) -> torch.fx.Node:
        node = self.graph.create_node("call_function", function, arguments, named or {}, name)
        if self.origin and self.origin != _ROOT:
            node.meta["stack_trace"] = _stack_trace(self.origin, self.line)
        return node

    def define(self, scope: _Scope, slot: int, node: torch.fx.Node) -> None:
        scope.nodes[slot] = node
        self.annotate(scope, node, slot)

    def annotate(self, scope: _Scope, node: torch.fx.Node, slot: int) -> None:
        meta = scope.program.slots[slot].meta if slot >= 0 else None
        if meta is not None and "val" not in node.meta:
            node.meta["val"] = self.fake(scope, meta)

    def fake(self, scope: _Scope, meta: TensorMeta) -> torch.Tensor:
        shape, stride = ([scope.number(size) for size in sizes] for sizes in (meta.shape, meta.stride))
        with self.fake_mode:
            return torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)


def _node_in(origin: str) -> int:
    """The number of the node in ``SumBackward0 (NodeCall 1)``, counted from 0; -1 for the root."""
    found = re.search(r"\(NodeCall (\d+)\)$", origin)
    return int(found[1]) - 1 if found else -1


def _stack_trace(origin: str, line: str) -> str:
    """As torch prints it: the user's line with the node behind it, or where nodes are run."""
    found = re.fullmatch(r"File: (.*):(\d+) in (\S+), code: (.*)", line)
    if not found:
        return f'  File "{__file__}", line 0, in autograd\n    {origin}'
    path, number, function, code = found.groups()
    return f'  File "{path}", line {number}, in {function}\n    {code}  # {origin}'
