"""What Dynamo calls for each graph it captures: FX graph in, compiled region out.

    backend: (GraphModule, example inputs) -> callable      also ``torch.compile(f, backend="gradc")``

Dynamo guards everything the graph depends on, so a region may rely on it. What cannot be compiled runs as Dynamo
captured it: the GraphModule itself, in eager mode.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import operator
import pathlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from gradc import native
from gradc.ambient import AutocastState, autocast_of, autocast_state, modes_kept_on_error, unsupported_mode
from gradc.backends import lookup_backend
from gradc.backward.settings import Settings
from gradc.config import config
from gradc.errors import OP_ERRORS, UnsupportedError
from gradc.frontend.cells import spelled_out
from gradc.ir.recorder import is_cast_for
from gradc.journal import count, fallback
from gradc.options import DEFAULTS, CompileOptions
from gradc.region.region import Region
from gradc.tape.tape import Tape, record, recorder_of
from gradc.tape.weight_casts import CacheError
from gradc.torch_private import (
    FAKE_TENSOR_ERRORS,
    FakeTensorMode,
    break_graph_where_eager_is_needed,
    break_graph_where_values_are_read,
    call_natively,
    guard_module_hooks,
    guard_weight,
    is_cut_off,
    is_saving_hooked_by_user,
    is_view,
    keep_ops_whole,
    keep_views_in_graphs,
    run_eagerly_where_dynamo_fails,
    run_optimizers_eagerly,
    skip_frames_of,
    tracing_context,
    unpack_whole_tensors,
)

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_KNOWN_ERRORS = {
    "is being used in an in-place operation": "input mutated in place with gradient recording",
    "don't yet support saved tensor hooks": "function transform",
}
_region_numbers = itertools.count()


def backend(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], options: CompileOptions = DEFAULTS, **kwargs: Any
) -> Callable[..., Any]:
    """Compile one graph of Dynamo's; the eager graph itself where that is not possible, counted under ``fallbacks``."""
    count("stats", "unique_graphs")
    graph, attributes = _lift_attributes(graph)
    compiled = modes_kept_on_error()(graph.forward)
    try:
        region = compile_region(graph, [*attributes, *inputs], options)
        compiled = _guarded(region, graph, compiled, options)
    except UnsupportedError as error:
        fallback(error.kind, error.detail, error.where or _first_line(graph), fullgraph=options.fullgraph)
    return functools.partial(compiled, *attributes) if attributes else compiled


def _lift_attributes(graph: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
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


def compile_region(graph: torch.fx.GraphModule, inputs: Sequence[Any], options: CompileOptions) -> Region:
    """Trace, cut, lower: one captured graph to one region.

    Raises:
        UnsupportedError: with the reason, if the region must run eagerly.
    """
    for value in inputs:
        if isinstance(value, torch.Tensor) and type(value) not in _PLAIN_TENSORS:
            raise UnsupportedError("tensor subclass", type(value).__name__)
    if reason := unsupported_mode():
        raise UnsupportedError(reason)
    for node in graph.graph.nodes:
        if "register_hook" in str(node.target):  # traced, it would be baked into backward; eager calls it each time
            raise UnsupportedError("hook registered inside", where=user_line(node))
    context = tracing_context()
    fake_mode = context.fake_mode if context is not None and context.fake_mode is not None else FakeTensorMode()
    examples, names = _placeholders(graph, inputs)
    settings = Settings(lookup_backend(options.backend), _backward_autocast())
    try:
        tape = record(_run_graph(graph), examples, names, fake_mode, "forward")
        if tape.symints:
            tape.again = recorder_of(_run_graph(graph), examples, names, tape)
        _guard_weights(tape, graph, inputs)
        region = Region(tape, settings, f"region {next(_region_numbers)}")
        if tape.symints or region.backwards.has_code_of_others:
            region.backwards.compile_nominal()
    except FAKE_TENSOR_ERRORS as error:
        raise UnsupportedError("data-dependent op", str(error).split("\n")[0]) from error
    except OP_ERRORS as error:
        # What eager would raise too, eager shall raise; what only fake tensors cannot do, eager can.
        text = str(error).split("\n")[0]
        kind = next((kind for part, kind in _KNOWN_ERRORS.items() if part in text), f"tracing raised {type(error).__name__}")
        raise UnsupportedError(kind, text) from error
    return region


def _guard_weights(tape: Tape, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Autocast caches the copies of weights alone: whether an input is one must be as it was when the region was traced."""
    placeholders = list(graph.graph.find_nodes(op="placeholder"))
    for position, is_weight in tape.weights.items():
        value, placeholder = inputs[position], placeholders[position]
        if value.is_leaf and is_view(value):
            raise UnsupportedError("leaf under autocast that is a view", _user_name(placeholder))
        if "grapharg" in placeholder.meta:
            guard_weight(placeholder, is_weight)


def _guarded(
    region: Region, graph: torch.fx.GraphModule, eagerly: Callable[..., Any], options: CompileOptions
) -> Callable[..., Any]:
    """The region, or eager where a state is active that no Program can serve."""

    def call(*inputs: Any) -> Any:
        if reason := unsupported_mode() or _what_is_unusual(inputs):
            fallback(reason, where=_first_line(graph), fullgraph=options.fullgraph)
            return eagerly(*inputs)
        with contextlib.suppress(CacheError):
            return tuple(region(*inputs))
        fallback("weights that autocast keeps other copies of", where=_first_line(graph), fullgraph=options.fullgraph)
        return eagerly(*inputs)

    return region.guarded(torch.compiler.disable(call))


def _what_is_unusual(inputs: Sequence[Any]) -> str:
    if is_saving_hooked_by_user():
        return "saved-tensors hooks"
    return "input that is a view made under no_grad" if any(map(is_cut_off, inputs)) else ""


def _backward_autocast() -> AutocastState | None:
    setting = config.backward_pass_autocast
    if setting == "ambient":
        return None
    if setting == "same_as_forward":
        return autocast_state()
    return AutocastState() if isinstance(setting, str) else autocast_of(setting)


def _placeholders(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """What to trace with, and the user's name, for each input: Dynamo's fake or symbolic value where it has one."""
    examples, names = [], []
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, value in zip(nodes, inputs, strict=True):
        symbolic = node.meta.get("example_value", value)
        if isinstance(value, torch.Tensor):
            examples.append(_Example(value, symbolic))
        else:
            examples.append(symbolic)
        names.append(_user_name(node))
    return [e.tensor() if isinstance(e, _Example) else e for e in examples], names


@dataclasses.dataclass(frozen=True)
class _Example:
    real: torch.Tensor
    symbolic: torch.Tensor

    def tensor(self) -> torch.Tensor:
        """The symbolic tensor where a size is symbolic; else the real one, whose layout and history count."""
        sizes = (*self.symbolic.size(), *self.symbolic.stride(), self.symbolic.storage_offset())
        return self.symbolic if any(isinstance(size, torch.SymInt) for size in sizes) else self.real


def _user_name(node: torch.fx.Node) -> str:
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


class _Runner(torch.fx.Interpreter):
    """Runs Dynamo's graph and tells the tape which line of the user's each call comes from."""

    def __init__(self, graph: torch.fx.GraphModule, tape: Tape) -> None:
        super().__init__(graph)
        self.tape = tape

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.higher_order.tag_activation_checkpoint:  # under fullgraph=True: inlined, saves all
            return _Runner(args[0], self.tape).run(*args[1:], enable_io_processing=False)
        return super().call_function(spelled_out(target, args), args, kwargs)

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op not in ("placeholder", "output"):
            self.tape.enter_line(user_line(n), _is_cast(n), _is_cast_for(n, autocast_state()))
        return super().run_node(n)


_CASTS = {"to", "type", "type_as", "half", "bfloat16", "float", "double", "_to_copy"}


def _call_name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_cast(node: torch.fx.Node) -> bool:
    return _call_name(node) in _CASTS


def _is_cast_for(node: torch.fx.Node, state: AutocastState) -> bool:
    """True if autocast casts the arguments of the call as a whole, so that what it calls in turn sees no autocast."""
    packet = getattr(torch.ops.aten, _call_name(node).strip("_") or "_", None) if node.op.startswith("call") else None
    return packet is not None and any(is_cast_for(getattr(packet, name), state) for name in packet.overloads())


def _run_graph(graph: torch.fx.GraphModule) -> Callable[..., list[Any]]:
    def run(tape: Tape, *fakes: Any) -> list[Any]:
        with modes_kept_on_error():
            return list(_Runner(graph, tape).run(*fakes, enable_io_processing=False))

    return run


def user_line(node: torch.fx.Node) -> str:
    """``File: model.py:12 in forward, code: return self.linear(x)``, or "" where Dynamo knows none."""
    trace = node.meta.get("stack_trace") or ""
    found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)', trace)
    if not found:
        return ""
    path, line, function, code = found[-1]
    return f"File: {path}:{line} in {function}, code: {code}"


def _first_line(graph: torch.fx.GraphModule) -> str:
    return next((line for node in graph.graph.nodes if (line := user_line(node))), "")


def is_ours(compiler: Any) -> bool:
    """True for a backend of Dynamo's that is gradc, under whatever wrappers of torch's."""
    return _unwrapped(compiler) is not None


def _unwrapped(compiler: Any) -> Any:
    names = ("_torchdynamo_orig_backend", "__wrapped__", "compiler_fn")
    while compiler is not None:
        if compiler is backend or type(compiler).__module__.startswith("gradc."):
            break
        compiler = next((getattr(compiler, name) for name in names if hasattr(compiler, name)), None)
    return compiler


def _note_optimizer(name: str, compiler: Any) -> None:
    options = getattr(_unwrapped(compiler), "options", DEFAULTS)
    fallback("optimizer", name, fullgraph=options.fullgraph)


def _rooms() -> list[str]:
    """The modules and packages of gradc that no user's code is in; the demo's is compiled."""
    names = (module.name for module in pkgutil.iter_modules([str(pathlib.Path(__file__).parent.parent)]))
    return [f"gradc.{name}" for name in names if name not in ("_C", "cli", "demo")]


break_graph_where_eager_is_needed(is_ours)
break_graph_where_values_are_read(is_ours)
keep_ops_whole(is_ours)
keep_views_in_graphs(is_ours)
run_eagerly_where_dynamo_fails(is_ours, functools.partial(fallback, "tracing failed"))
run_optimizers_eagerly(is_ours, _note_optimizer)
unpack_whole_tensors(is_ours)
call_natively()
guard_module_hooks(native.no_hooks)
skip_frames_of(*_rooms())
